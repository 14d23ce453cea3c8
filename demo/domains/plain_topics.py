"""Sentences of the plain prose set: sixteen topics with openings, middles and endings.

In a sentence ``{town}``, ``{name}``, ``{season}``, ``{weather}`` and ``{visitor}`` stand for
fillers, which are the same throughout one paragraph. Middles keep their order when some are left
out, so every paragraph reads from the general to the particular.
"""

from __future__ import annotations

_TEXT = """
A lighthouse has stood on the rocks outside {town} for longer than anyone there can remember.
The old lighthouse near {town} is no longer needed by ships, but the people are fond of it.
-
Its lower walls are built of grey granite that was carried over the water on flat barges.
A narrow staircase winds up the inside and ends in a small round room with wide windows.
The keepers used to polish the great lens every morning so that the beam would carry far.
In thick fog a bell was rung by hand, and the sound of it reached the nearest farms.
When electric light arrived, the last keeper moved ashore and opened a shop for fishing gear.
On clear evenings the white tower can be seen from the hills far inland.
-
Today a local society cares for the building and opens its door to visitors in {season}.
Painters still come to the cliff in {season}, drawn by the way the light falls on the stone.
=
The river that runs past {town} begins as a thin stream high up between the hills.
Few rivers shape a valley as clearly as the one that flows slowly through {town}.
-
In its upper course it is cold and quick, and it carries gravel down from the slopes.
Further down the ground is soft, and the water bends in wide loops between the meadows.
Herons wait in the shallow places, where small fish gather in the warmth of the sun.
Willows hold the banks together with their roots and give shade to the cattle.
After weeks of {weather} the level changes, and the fields beside it look quite different.
An old stone bridge joins the two shores, and carts have worn deep tracks into its surface.
-
Near the coast the river grows broad and calm, and its fresh water mixes with the sea.
People in the valley say that the river is their oldest neighbour and their most patient one.
=
Bread has been baked in the village ovens around {town} for as long as records go back.
In {town} the day begins with the smell of bread that drifts out of a small bakery.
-
The baker, {name}, rises while the streets are dark and lights the fire under the stones.
Flour, water and salt are all that the simplest loaf requires, along with a good deal of time.
The dough rests under a linen cloth until it has grown soft and full of air.
A sour starter, kept alive from one week to the next, gives the crust its deep flavour.
When {weather} fills the street, the warm room behind the counter becomes a meeting place.
Rye loaves keep fresh for many days, while white rolls are best on the morning they are made.
-
By noon the shelves are empty, and the oven slowly cools until the following night.
Even the {visitor} who passes through only once tends to remember the taste of that bread.
=
Honeybees live in large colonies in which almost every task is divided among the workers.
A beehive at the edge of an orchard near {town} is a busy place on every mild day of the year.
-
Young bees stay inside at first, where they clean the cells and feed the larvae.
Older ones fly out to search for nectar and return heavy with pollen from the blossoms.
A bee that has found rich flowers shows the direction to the others by a kind of dance.
The queen is larger than her daughters, and she rarely leaves the darkness of the hive.
During {weather} the whole colony crowds together and keeps the centre of the nest warm.
Beekeepers such as {name} move calmly and use a little smoke to quieten the insects.
-
The honey that is taken must be replaced with syrup, so that the bees survive the cold.
Without their quiet labour many fruit trees would bear little, and the meadows would lose colour.
=
The night train to {town} leaves the capital after dark and crosses the plain by dawn.
For many travellers the slow train to {town} is more than a way of getting somewhere.
-
The carriages are old, with wooden panels and brass lamps that tremble at every bend.
A conductor named {name} walks the corridor and greets regular passengers like old friends.
Outside the windows, lone farmhouses appear for a moment and then fall back into the night.
Some people talk in low voices, while others watch the dark fields without a word.
Near the end the engine climbs toward the pass, and the air inside turns cool and clear.
The line was laid through marsh and forest by workers whose names nobody wrote down.
-
When the doors open at last, {weather} and the scent of the mountains fill the platform.
A {visitor} who steps out early may find the square of the town still empty and silent.
=
Wool was once the main source of wealth for the hill country around {town}.
In the hills above {town}, sheep outnumber people, and the rhythm of the year follows the flock.
-
The animals spend the warm months on high pastures that are too steep for any plough.
Dogs bring them down when the first {weather} settles on the ridges.
Shearing is a loud and cheerful event to which neighbours come from all directions.
The fleece is washed in soft water, combed until it is even, and spun into strong yarn.
Natural dyes made from roots and lichens give the cloth its muted greens and browns.
The weaver {name} still works at a loom that belonged to her family for generations.
-
Blankets from the district are heavy and plain, and they are said to last a lifetime.
Though few mills remain, the craft is taught again to young people every {season}.
=
Volcanoes form where molten rock finds a path to the surface through cracks in the crust.
A sleeping volcano rises behind {town}, and its dark cone is visible from every street.
-
Some eruptions are gentle, with slow streams of lava that glow red during the night.
Others throw ash high into the air, where winds can carry it over great distances.
The soil that forms from old ash is rich, so farmers return to the slopes again and again.
Hot springs near the foot of the mountain show that heat still lingers far below.
Scientists listen to faint tremors underground and measure the gases that escape from vents.
Mosses are usually the first plants to settle on fresh lava, followed by ferns and low shrubs.
-
In time a forest may cover the scars, and only the shape of the land recalls the fire.
People who live there respect the mountain, and they keep their paths to safety well marked.
=
The museum in {town} is small, yet it tells the story of the whole coast.
Behind a plain brick front, the museum of {town} keeps a collection gathered by sailors.
-
Carved figures from wrecked ships look down from the walls of the entrance hall.
One room is filled with maps on which unknown lands fade into blank paper.
The curator, {name}, knows the history of every compass, lantern and rusted anchor.
Letters written at sea lie under glass, their ink pale but their words still easy to follow.
A model of the old harbour shows the warehouses that were lost in a great storm.
In times of {weather} the roof leaks a little, and buckets are placed between the cases.
-
School classes arrive in {season} and leave with drawings of whales and sails.
A {visitor} can spend a whole afternoon there and still discover something at the door.
=
Mountain weather changes quickly, and those who live below the peaks learn to read the sky.
Above {town} the clouds gather early, and by midday the summit has often disappeared.
-
Warm air rises along the slopes, cools as it climbs, and lets go of its moisture.
A sudden stillness among the birds is taken as a sign that a storm is near.
Shepherds trust the colour of the evening light more than any instrument.
In the narrow valleys the wind grows strong, because it has no other way to pass.
Snow stays in the shaded gullies long after the meadows have turned green.
The guide {name} keeps a diary in which every day of {weather} has its own short entry.
-
By night the sky usually clears, and the stars seem closer than they do in the plain.
Such notes, kept over a lifetime, reveal how slowly the seasons themselves are shifting.
=
The weekly market fills the main square of {town} long before the bells ring for the morning.
Every {season} the market of {town} draws growers from the villages on both sides of the river.
-
Farmers arrange their cabbages and pears with care, for a handsome stall attracts more people.
Cheese makers offer small pieces on wooden boards and speak at length about their herds.
An elderly woman named {name} sharpens knives on a wheel that she turns with her foot.
Children run between the carts, while their parents exchange the news of the week.
When {weather} threatens, striped canvas is pulled over the stands within moments.
Flowers are sold at the fountain, where there is always water to keep them fresh.
-
By early afternoon the last crates are loaded, and sparrows take possession of the stones.
What remains is a faint scent of herbs that clings to the square until evening.
=
Glass is made by heating sand with ash and lime until the mixture melts and turns clear.
The glass workshop at the edge of {town} is one of the last of its kind in the region.
-
The furnace is never allowed to go out, for it would take days to warm it again.
With a long pipe the blower gathers a glowing drop and shapes it with slow breaths.
Wet wooden tools hiss as they touch the surface and smooth it into a curve.
Colours come from metals, and a trace of cobalt is enough to produce a deep blue.
The finished pieces cool in a brick chamber, since a rapid change would make them crack.
The master, {name}, learned the trade from an uncle and now teaches it to a niece.
-
On days of {weather} neighbours find reasons to visit the warm hall and watch the work.
No two vessels are alike, and small bubbles in the wall are considered a mark of honesty.
=
Owls hunt at night, and their bodies are adapted to darkness in remarkable ways.
In the woods north of {town}, the call of an owl is often the only sound after dusk.
-
Soft fringes on the feathers break up the air, so the wings move almost without noise.
The large eyes cannot turn in their sockets, and the bird must move its whole head instead.
Hearing is even more important than sight, and a mouse beneath leaves is found with ease.
Most species nest in hollow trees, although barns and towers are accepted as well.
The young leave the nest before they can fly and climb about on the nearest branches.
In long spells of {weather} prey becomes scarce, and many owls move closer to the farms.
-
A volunteer named {name} puts up wooden boxes each {season} to replace the fallen trees.
Old stories treat the owl as a sign of wisdom, and many people still welcome its voice.
=
The public garden of {town} was laid out by a doctor who believed in the value of fresh air.
Few places in {town} are as quiet as the walled garden behind the former hospital.
-
Gravel paths run between low hedges and meet at a pond with water lilies.
Medicinal herbs grow in the oldest beds, each with a small sign made of slate.
A tall cedar near the gate was planted as a seedling and now shades half of the lawn.
The head gardener, {name}, prefers old roses, because their scent is stronger.
In {season} musicians play under the pavilion, and chairs are carried out from the houses.
Even in {weather} a few faithful guests walk their usual round beneath umbrellas.
-
The gate is locked at sunset, and hedgehogs then have the paths to themselves.
A {visitor} who sits still for a while will notice how many birds live within the walls.
=
Paper was once made entirely by hand from rags that were collected in the towns.
The paper mill beside the stream at {town} has kept its wooden hammers and its great wheel.
-
Old linen was sorted, cut and left to soak until the fibres began to loosen.
Heavy hammers then pounded it into a pale pulp that was as thin as milk.
A worker dipped a fine sieve into the vat and lifted it with a steady motion.
Each sheet was laid between pieces of felt, pressed hard and hung up in an airy loft.
A wire figure sewn onto the sieve left a faint mark that shows when held to the light.
The owner, {name}, repaired the mill after years of {weather} had damaged the roof.
-
Book restorers from many countries order its sheets, for the paper hardly ages.
In {season} the wheel turns again, and the sound of the hammers carries down the valley.
=
The harbour of {town} wakes slowly on the days when {weather} keeps the boats at their moorings.
Fishing has become a quiet trade in {town}, carried on by a handful of families.
-
Nets are mended on the quay with wooden needles and a thread that resists salt.
The boats are painted in bright colours, so that each can be recognised from afar.
Gulls follow the returning crews and quarrel over whatever is thrown overboard.
An ice house built into the hillside once kept the catch fresh through the warm months.
Captain {name} says that the sea is never the same, and that habit is a poor guide.
Rules about the size of the mesh protect young fish and give the shoals time to recover.
-
In the evening, lamps are lit along the pier, and the tavern fills with familiar voices.
Each {season} the fleet is blessed at the water's edge, a custom older than the church.
=
Clocks on public towers once gave whole towns a common sense of the hour.
The clock above the gate of {town} is known for a small figure that appears when it strikes.
-
Before it was built, people relied on the sun and on the bells of the monastery.
Its weights hang in a deep shaft, and they have to be wound up by hand at regular times.
A pendulum as long as a door swings in the dim room behind the painted face.
Cold air slows the movement, and {weather} can make the hands lag behind.
The clockmaker {name} climbs the tower often and listens before touching anything.
Oil is used sparingly, since dust would otherwise settle between the teeth of the wheels.
-
During a repair in {season} the town fell strangely silent, and many people missed the chime.
For a {visitor} the clock is a curiosity, while for the residents it is part of the day.
"""


def _parse(text: str) -> tuple[tuple[tuple[str, ...], ...], ...]:
    return tuple(
        tuple(tuple(part.strip().splitlines()) for part in topic.split("\n-\n"))
        for topic in text.split("\n=\n")
    )


TOPICS = _parse(_TEXT)
"""One (openings, middles, endings) triple of sentence tuples per topic."""

FILLERS: dict[str, tuple[str, ...]] = {
    "town": (
        "Alderby",
        "Brinmouth",
        "Corvale",
        "Dunhollow",
        "Elmsworth",
        "Farnley",
        "Gorseford",
        "Hallam Bay",
        "Inverlow",
        "Kestrel Head",
        "Lowmere",
        "Marsden",
        "Norwood",
        "Oldcastle",
        "Penrith Cross",
        "Rosemoor",
        "Saltby",
        "Tarnside",
        "Upperton",
        "Wexcombe",
    ),
    "name": (
        "Agnes",
        "Bettina",
        "Cora",
        "Dorothea",
        "Elspeth",
        "Flora",
        "Gwen",
        "Henrike",
        "Imogen",
        "Judith",
    ),
    "season": ("spring", "early summer", "late summer", "autumn"),
    "weather": ("heavy rain", "dense fog", "strong wind", "hard frost", "wet snow"),
    "visitor": ("traveller", "stranger", "student", "walker", "newcomer", "tourist"),
}
"""Choices for every placeholder of the sentences."""
