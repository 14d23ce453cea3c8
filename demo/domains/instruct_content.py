"""Topics and phrases that fill the requests of the instruct domain.

A category has topics (``name|a|b|c``) and points, which are short imperative sentences of five to
twelve words with the slots ``{a}``, ``{b}``, ``{c}``. No point has a comma, a colon, a quotation
mark or a full stop before its end, so that every layout and every check can use every point.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["TOPICS", "Topic"]


@dataclass(frozen=True)
class Topic:
    """A subject (``name`` reads well after "about") with its finished points."""

    name: str
    points: tuple[str, ...]


_CATEGORIES: tuple[tuple[str, str], ...] = (
    (
        """growing tomatoes|tomatoes|a sunny wall|blight
growing strawberries|strawberries|a raised bed|slugs
growing herbs indoors|herbs|a bright window sill|mildew
growing sunflowers|sunflowers|an open border|snails
growing potatoes|potatoes|a deep sack|beetles
growing roses|roses|a sheltered corner|black spot
growing chilli peppers|peppers|a warm greenhouse|aphids""",
        """Choose {b} for your {a}.
Water the {a} early in the morning.
Check the leaves every week for {c}.
Mix plenty of compost into the soil.
Leave enough space between the young plants.
Feed the {a} every two weeks in summer.
Spread mulch to keep the moisture in.
Pull out weeds before they set seed.
Remove any sick leaf at once.
Protect the seedlings from cold nights.
Keep a small diary of what you planted.
Ask a neighbour which {a} do well nearby.""",
    ),
    (
        """a weekend in Lisbon|Lisbon|the castle|custard tarts
a weekend in Rome|Rome|the Forum|artichokes
a weekend in Kyoto|Kyoto|the bamboo grove|green tea sweets
a weekend in Vienna|Vienna|the opera house|apple strudel
a weekend in Dublin|Dublin|the old library|oyster stew
a weekend in Istanbul|Istanbul|the grand bazaar|roasted chestnuts
a weekend in Prague|Prague|the stone bridge|honey cake""",
        """Book a small hotel near the centre.
Visit {b} before the crowds arrive.
Taste the famous {c} at a market stall.
Buy a day ticket for the buses.
Wear shoes that can stand long walks.
Learn three polite phrases before you leave.
Keep one free afternoon for quiet streets.
Watch the sunset from a high place.
Carry a paper map of {a}.
Ask people in {a} where they eat lunch.
Reserve a table for the last evening.
Leave room in your bag for gifts.""",
    ),
    (
        """sleeping better|sleep|evening|a dark bedroom
drinking more water|water|morning|a large bottle
walking every day|walking|afternoon|comfortable shoes
stretching at home|stretching|morning|a soft mat
meditating daily|meditation|evening|a quiet chair
eating more vegetables|vegetables|evening|a colourful shopping list
spending less time on the phone|phone use|evening|a drawer for the phone""",
        """Start with one tiny step a day.
Prepare {c} the day before.
Pick a fixed time every {b}.
Mark each good day on a calendar.
Tell a friend about your plan.
Forgive yourself when you miss a day.
Write down how you feel each week.
Reward yourself after a full week.
Remove one thing that gets in your way.
Link the new habit to an old one.
Set a gentle reminder for the {b}.
Notice how {a} changes your mood.""",
    ),
    (
        """learning Spanish|Spanish|Madrid|verb endings
learning French|French|Paris|silent letters
learning German|German|Berlin|long nouns
learning Italian|Italian|Florence|double consonants
learning Japanese|Japanese|Osaka|written signs
learning Swedish|Swedish|Stockholm|vowel sounds
learning Portuguese|Portuguese|Porto|nasal sounds""",
        """Learn ten useful words every day.
Listen to {a} songs on the bus.
Repeat short sentences out loud.
Practise the {c} with small cards.
Watch films from {b} with subtitles.
Find a partner for weekly conversations.
Label objects at home with {a} words.
Read children's books before real novels.
Keep a notebook for new expressions.
Accept mistakes as part of the process.
Write three lines in {a} each night.
Plan a trip to {b} as a reward.""",
    ),
    (
        """learning chess|chess|the king|an opening trap
learning checkers|checkers|the back row|a double jump
learning backgammon|backgammon|the home board|a bold double
learning bridge|bridge|the trump suit|a clever bid
learning dominoes|dominoes|the open ends|a blocked chain
learning the game of go|go|the corners|a hidden ladder""",
        """Learn the rules of {a} one at a time.
Play slow games against patient friends.
Think about {b} before every move.
Study one famous game each week.
Look out for {c} from your opponent.
Write down the moves of lost games.
Solve a few puzzles every morning.
Stay calm when you fall behind.
Join a local club for {a}.
Plan at least two turns ahead.
Ask stronger players for honest advice.
Take a short break after a defeat.""",
    ),
    (
        """learning the guitar|guitar|fingers|simple chords
learning the piano|piano|hands|scales
learning the violin|violin|bow arm|long notes
learning the flute|flute|breath|low notes
learning the drums|drums|wrists|steady beats
learning the ukulele|ukulele|fingers|folk tunes
learning the harmonica|harmonica|breath|slow blues""",
        """Practise {c} for ten minutes a day.
Relax your {b} while you play.
Use a metronome to keep time.
Listen to great music for the {a} at night.
Record yourself and listen again later.
Begin with one easy song you love.
Repeat the hard bar very slowly.
Keep your {a} in plain sight at home.
Take lessons from a friendly teacher.
Play together with friends each month.
Clean the {a} after every session.
Stop at once when something hurts.""",
    ),
    (
        """caring for a cat|cat|a scratching post|string
caring for a dog|dog|a warm basket|chocolate
caring for a rabbit|rabbit|a roomy hutch|loose cables
caring for a hamster|hamster|a silent wheel|direct sun
caring for a parrot|parrot|a large cage|open windows
caring for a tortoise|tortoise|a heat lamp|steep steps
caring for a guinea pig|guinea pig|a clean hay rack|cold drafts""",
        """Give your {a} fresh water every day.
Buy {b} before the animal arrives.
Keep your {a} away from {c}.
Visit the vet once a year.
Offer small meals at regular hours.
Speak softly while you come closer.
Play with your {a} for a while daily.
Clean the sleeping place every week.
Watch for changes in appetite or mood.
Let your {a} rest after feeding.
Find a kind sitter for the holidays.
Note the weight of your {a} each month.""",
    ),
    (
        """making pancakes|batter|butter|berries
baking bread|dough|salt|seeds
cooking vegetable soup|soup|onions|parsley
baking pizza|dough|tomato sauce|basil
cooking a mild curry|curry|ginger|coriander
making an omelette|egg mix|cheese|chives
cooking risotto|rice|warm stock|lemon zest""",
        """Read the whole recipe before you begin.
Weigh everything and set it in order.
Add the {b} a little at a time.
Stir the {a} gently with a wooden spoon.
Taste a little before you serve it.
Heat the pan or oven early.
Sprinkle {c} over the finished dish.
Choose fresh products from the market.
Let the {a} rest for a few minutes.
Wash the bowls while you wait.
Keep the heat low and stay patient.
Serve it warm to hungry guests.""",
    ),
    (
        """cleaning the kitchen|kitchen|grease|the stove
cleaning the bathroom|bathroom|limescale|the shower
cleaning the garage|garage|oil stains|the workbench
cleaning the living room|living room|dust|the bookshelf
cleaning the attic|attic|cobwebs|the old trunk
cleaning the balcony|balcony|moss|the railing""",
        """Open a window before you start.
Begin at the top of the {a}.
Treat {b} with warm water and vinegar.
Wipe {c} with a damp cloth.
Throw away things you never use.
Sort small objects into labelled boxes.
Play cheerful music while you work.
Sweep the floor as the last step.
Wear gloves to protect your hands.
Split the {a} into four small zones.
Set a timer for twenty minutes.
Repeat the round every other week.""",
    ),
    (
        """starting to run|running|light shoes|the park
starting to swim|swimming|good goggles|the town pool
starting to cycle|cycling|a solid helmet|quiet lanes
starting to play tennis|tennis|a light racket|the public court
starting to climb|climbing|a snug harness|the indoor wall
starting to row|rowing|thin gloves|the calm lake
starting to skate|skating|knee pads|an empty square""",
        """Warm up slowly for five minutes.
Buy {b} before the first day.
Choose {c} for your weekly practice.
Rest one full day between sessions.
Drink some water before and after.
Increase the effort little by little.
Find a friend who enjoys {a} too.
Stretch your muscles at the end.
Set one clear goal for the month.
Learn the basic moves from a coach.
Stop early if you feel pain.
Note your progress in a notebook.""",
    ),
    (
        """packing for a beach holiday|beach|sun cream|a straw hat
packing for a ski trip|slopes|thick gloves|warm socks
packing for a business trip|meeting|a pressed shirt|a spare charger
packing for a camping trip|campsite|a small torch|a rain jacket
packing for a city break|city|a light scarf|walking shoes
packing for a long flight|plane|a neck pillow|a good novel""",
        """Write a list two days before you go.
Roll your clothes to save space.
Put {b} at the top of the bag.
Remember {c} for the {a}.
Check the weather for the whole week.
Keep your papers in one safe pocket.
Choose colours that go well together.
Pack medicine in a clear pouch.
Leave one third of the bag empty.
Weigh the suitcase on the bathroom scale.
Tie a bright ribbon to the handle.
Take a snack for the way to the {a}.""",
    ),
    (
        """planning a birthday party|party|balloons|a chocolate cake
planning a picnic|picnic|wide blankets|cold lemonade
planning a barbecue|barbecue|paper lanterns|grilled corn
planning a school reunion|reunion|old photos|a simple buffet
planning a book club evening|evening|soft lamps|tea and biscuits
planning a garden wedding|wedding|white flowers|a light menu
planning a game night|game night|extra chairs|salty snacks""",
        """Set the date at least a month ahead.
Send the invitations early in the week.
Decorate the place with {b}.
Offer {c} to all the guests.
Ask who cannot eat nuts or milk.
Share the work among three friends.
Make a playlist that everybody likes.
Think of a plan for rainy weather.
Welcome every guest at the door.
Prepare one short game for the start.
Fix a budget for the {a}.
Thank the helpers after the {a}.""",
    ),
    (
        """preparing for a maths exam|maths|formulas|problem
preparing for a history exam|history|dates|chapter
preparing for a biology exam|biology|diagrams|chapter
preparing for a geography exam|geography|maps|region
preparing for a driving test|driving|road signs|route
preparing for a music exam|music|scales|piece""",
        """Make a timetable for the last two weeks.
Review the {b} every evening.
Explain one hard {c} to a friend.
Work in blocks of thirty minutes.
Study old papers under real conditions.
Turn off your phone while you study.
Sleep at least eight hours each night.
Eat a good breakfast on the day.
Write short notes with coloured pens.
Begin with the hardest {c}.
Ask your {a} teacher about unclear points.
Arrive early and breathe slowly.""",
    ),
    (
        """a job interview|interview|the company|your strengths
a first day at work|first day|the team|your desk
a talk to a large audience|talk|the room|your slides
an online meeting|meeting|the agenda|your microphone
a yearly review with the boss|review|the last goals|your results
a visit to an important client|visit|the contract|your offer""",
        """Read about {b} the day before.
Check {c} one last time.
Dress in clean and simple clothes.
Arrive ten minutes before the {a}.
Greet everyone with a calm smile.
Listen closely before you answer.
Bring a pen and a small notebook.
Speak slowly and in short sentences.
Prepare two good questions to ask.
Turn your phone to silent mode.
Send a polite note after the {a}.
Practise the hardest part with a friend.""",
    ),
    (
        """saving money for a car|car|petrol|fuel prices
saving money for a holiday|holiday|restaurants|ticket prices
saving money for a house|house|rent|loan rates
saving money for college|college|textbooks|student grants
saving money for a new bicycle|bicycle|bus fares|spring sales
saving money for old age|old age|hobbies|pension plans""",
        """Write down every coin you spend.
Move some money aside on payday.
Open a second account for the {a}.
Cook at home on most evenings.
Compare {c} before you decide.
Spend a bit less on {b}.
Cancel subscriptions you never use.
Sell things that only gather dust.
Wait a day before large purchases.
Set a realistic target for each month.
Celebrate every tenth of the sum.
Hang a picture of your goal nearby.""",
    ),
    (
        """fixing a dripping tap|tap|a new washer|the water supply
fixing a flat bicycle tyre|tyre|a rubber patch|the rear brake
fixing a squeaky door|door|some light oil|the upper hinge
fixing a wobbly table|table|strong glue|the loose leg
fixing a torn jacket|jacket|matching thread|the inner lining
fixing a stuck drawer|drawer|a wax candle|the wooden rail""",
        """Look at the {a} in good light.
Gather your tools before you begin.
Get {b} from a hardware shop.
Check {c} before anything else.
Take a photo before you take it apart.
Lay the small parts on a tray.
Clean the damaged area with a cloth.
Work slowly and never use force.
Test the {a} before you tidy up.
Watch a short video of the repair.
Ask a skilled friend for a hand.
Keep spare parts for the next time.""",
    ),
    (
        """knitting a scarf|scarf|soft wool|rows
sewing a cloth bag|bag|strong cotton|seams
painting with watercolours|picture|thick paper|layers
making a clay bowl|bowl|smooth clay|edges
carving a wooden spoon|spoon|dry lime wood|cuts
making candles|candle|clean wax|wicks
folding paper cranes|crane|thin square paper|folds""",
        """Start with a small and simple {a}.
Choose {b} of good quality.
Count the {c} as you go along.
Sit near a window with daylight.
Sketch your idea before you start.
Watch how an expert holds the tools.
Expect the first {a} to look odd.
Take a break when your hands tire.
Protect the table with old newspaper.
Correct small errors straight away.
Give the finished {a} to a friend.
Store your material in a dry box.""",
    ),
    (
        """watching birds|birds|a pair of binoculars|woodland
watching the stars|stars|a red torch|open field
watching butterflies|butterflies|a small net|meadow
hiking in the hills|trails|a sturdy stick|valley
looking for fossils|fossils|a light hammer|quarry
fishing at a lake|fish|a simple rod|shore
taking photos of wild flowers|flowers|a small tripod|meadow""",
        """Get up early for the best views.
Carry {b} in your bag.
Move quietly along the {c}.
Wear clothes in dull colours.
Read a field guide about {a}.
Tell somebody where you are going.
Take your rubbish home with you.
Bring a warm drink and a snack.
Write the place and time in a notebook.
Stay on the marked path.
Share your best moments with other fans of {a}.
Check the forecast for the {c}.""",
    ),
    (
        """backing up photos|photos|an external drive|folder
choosing safe passwords|passwords|a password manager|account
sorting your email|messages|a few clear labels|inbox
setting up a new laptop|programs|a fast charger|desktop
learning to code|small programs|a free editor|project
building a simple website|pages|a cheap domain|layout
organising digital files|files|a naming rule|folder""",
        """Set aside one quiet hour for it.
Start with {b} that you trust.
Delete old {a} you no longer need.
Give each {c} a clear purpose.
Check your {a} at the end of the month.
Install updates as soon as they appear.
Keep a second copy in another place.
Write the main steps on paper.
Ask for help before you get angry.
Test everything once before you rely on it.
Never share private data with strangers.
Let the computer repeat the boring parts.""",
    ),
    (
        """writing a short story|story|stormy night|surprise
writing a poem|poem|bright image|quiet rhyme
writing a wedding speech|speech|shared memory|warm joke
writing a travel blog|blog|small town|local tip
writing a family history|book|old house|faded letter
writing a song|song|strong feeling|soft echo
writing a children's book|book|magic forest|warm hug""",
        """Write for fifteen minutes every morning.
Choose one {b} and describe it well.
Add a {c} near the end.
Use strong verbs and few adjectives.
Read your {a} aloud to yourself.
Cut every sentence that adds nothing.
Carry a notebook for sudden ideas.
Finish the draft before you edit.
Ask two friends for honest comments.
Begin your {a} with a vivid scene.
Let the text rest for a week.
Trust your own voice and humour.""",
    ),
)


def _topics() -> tuple[Topic, ...]:
    found = []
    for names, bank in _CATEGORIES:
        for row in names.splitlines():
            name, a, b, c = row.split("|")
            points = tuple(line.format(a=a, b=b, c=c) for line in bank.splitlines())
            found.append(Topic(name, points))
    return tuple(found)


TOPICS: tuple[Topic, ...] = _topics()
