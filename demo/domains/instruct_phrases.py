"""Wordings of the requests and constraints of the instruct domain.

The texts are ``str.format`` patterns; ``{topic}`` reads well after "about" and "on".
"""

from __future__ import annotations

__all__ = [
    "CLOSINGS",
    "CONSTRAINT_PHRASES",
    "CONTENT_STOP_WORDS",
    "FIRST_LINES",
    "GREETINGS",
    "INTROS",
    "LINKS",
    "LINKS_WITHOUT_COMMA",
    "NAMES",
    "QUESTIONS",
    "REQUESTS",
    "SEPARATORS",
    "START_INTROS",
    "START_WORDS",
    "TAGS",
    "TITLES",
]

REQUESTS: dict[str, tuple[str, ...]] = {
    "number": (
        "Give me {n} tips about {topic} as a numbered list.",
        "Write a numbered list with exactly {n} points on {topic}.",
        "I need advice on {topic}. Number your points; there must be {n}.",
    ),
    "dash": (
        "List {n} ideas about {topic}, each on a line that begins with a dash.",
        "Make a list with dashes: exactly {n} points on {topic}.",
        "Please note {n} things about {topic}. Put a dash before each one.",
    ),
    "star": (
        "Use bullet points with * and give exactly {n} tips about {topic}.",
        "Write {n} bullets about {topic}. Each one begins with an asterisk (*).",
        "What should I know about {topic}? Answer in {n} bullets that start with *.",
    ),
    "letter": (
        "Give {n} points about {topic}, labelled a), b) and so on.",
        "Write a list on {topic} with {n} entries marked by letters like a) and b).",
        "I want {n} tips about {topic}. Mark them a), b), c) in order.",
    ),
    "step": (
        "Describe {topic} in {n} lines that begin with Step 1:, Step 2: and so on.",
        "Write a guide with exactly {n} steps about {topic}. Use labels such as Step 1:.",
        'Explain {topic} to me in {n} steps. Begin each line with "Step" and its number.',
    ),
    "paragraph": (
        "Write one paragraph of exactly {n} sentences about {topic}.",
        "In a single paragraph with {n} sentences, give advice on {topic}.",
        "Tell me about {topic} in {n} sentences. Do not break the paragraph.",
    ),
    "json": (
        'Give advice on {topic} as a JSON object with the keys {keys}; "{list_key}" is a list of '
        "{n} strings.",
        "Answer only with JSON about {topic}. Use exactly the keys {keys}. Put {n} strings in a "
        'list under "{list_key}".',
        'Make a JSON object on {topic}. Keys: {keys}. The value of "{list_key}" must be a list of '
        "{n} strings.",
    ),
    "note": (
        "Write a short letter to {name} about {topic}.",
        "Write {name} a brief message with advice on {topic}.",
        "My friend {name} asked about {topic}. Write a short reply.",
    ),
    "titled": (
        "Write a title in capital letters and below it {n} short lines about {topic}.",
        "About {topic}: one title line in capitals, then exactly {n} lines of text.",
        "Put a heading in all capitals over {n} lines of advice on {topic}.",
    ),
    "qa": (
        "Write one question and its answer on {topic}. Begin the lines with Q: and A:. The answer "
        "has {n} sentences.",
        "Make a question-and-answer pair (Q: and A:) about {topic}; answer in {n} sentences.",
        "Use the form Q: ... A: ... for {topic}. Give {n} sentences after A:.",
    ),
    "blocks": (
        "Write {n} tips about {topic} with a line {line} between them.",
        "Give me {n} pieces of advice on {topic}. Separate them by a line with {line}.",
        "Write {n} short parts about {topic}, split by the line {line}.",
    ),
}

CONSTRAINT_PHRASES: dict[str, tuple[str, ...]] = {
    "include": (
        "Include the {noun} {words}.",
        "Use the {noun} {words} somewhere.",
        "Your answer must contain the {noun} {words}.",
        "Make sure to mention {words}.",
    ),
    "exclude": (
        'Do not use the word "{word}".',
        'Avoid the word "{word}".',
        'The word "{word}" must not appear.',
    ),
    "lower": (
        "Write everything in lower case.",
        "Use only lowercase letters.",
        "No capital letters are allowed.",
    ),
    "upper": (
        "Write everything in capital letters.",
        "Use only capitals.",
        "Your whole answer must be in upper case.",
    ),
    "title": (
        "Put a title in capital letters on the first line.",
        "Begin with a heading line in all capitals.",
        "The first line is a title in capitals.",
    ),
    "greeting": (
        "Start by greeting {name} in {language}.",
        "Open with a {language} hello to {name}.",
        'Begin with the {language} word for "hello" and the name {name}.',
    ),
    "closing": (
        'End with the line "{phrase}".',
        'The last line must be "{phrase}".',
        'Finish with the phrase "{phrase}" on its own line.',
    ),
    "start": (
        'Start your answer with the word "{word}".',
        'Your first word must be "{word}".',
        'Begin with "{word}".',
    ),
    "max_words": (
        "Each point has at most {n} words.",
        "Use no more than {n} words per point.",
        "Keep every point to {n} words or fewer.",
    ),
    "total_words": (
        "Use at most {n} words in total.",
        "Do not write more than {n} words.",
        "Stay within {n} words.",
    ),
    "no_commas": (
        "Do not use any commas.",
        "Write without commas.",
        "No commas are allowed.",
    ),
    "question_end": (
        "End with a question.",
        "The last sentence must be a question.",
        "Finish by asking me something.",
    ),
    "quoted": (
        "Wrap the whole answer in double quotation marks.",
        "Put your answer between double quotes.",
        "Your reply must begin and end with a quotation mark.",
    ),
    "first_line": (
        'The first line must be "{line}".',
        'Begin with the line "{line}".',
        'Put "{line}" on the first line.',
    ),
    "point_end": (
        "End each point with {mark_name}.",
        "Every point must finish with {mark_name} ({mark}).",
        "Put {mark_name} at the end of every point.",
    ),
    "tags": (
        "Wrap the answer in <{tag}> and </{tag}>.",
        "Put everything between the tags <{tag}> and </{tag}>.",
        "Start with <{tag}> and end with </{tag}>.",
    ),
    "postscript": (
        "Add a postscript that begins with P.S. at the end.",
        "Finish with a line that starts with P.S.",
        "End with a P.S. line.",
    ),
}

INTROS: tuple[str, ...] = (
    "Here are some points about {topic}:",
    "Some advice on {topic}:",
    "This can help with {topic}:",
    "My tips for {topic}:",
)

START_INTROS: tuple[str, ...] = (
    "these points help:",
    "this is what I suggest:",
    "you should think of this:",
    "here is my advice on {topic}:",
)

FIRST_LINES: tuple[str, ...] = (
    "Topic: {topic}",
    "Advice on {topic}",
    "My notes on {topic}",
    "All about {topic}",
    "A short guide to {topic}",
)

TITLES: tuple[str, ...] = (
    "{topic}",
    "Notes on {topic}",
    "All about {topic}",
    "Tips for {topic}",
    "A guide to {topic}",
)

SEPARATORS: tuple[str, ...] = ("***", "---", "===", "###", "~~~")

TAGS: tuple[str, ...] = ("answer", "tips", "reply", "note", "text")

# One entry per place in the text: the second sentence, those after it, the last one. A link is
# used once per text, so the middle entry needs as many as there can be middle sentences.
LINKS: tuple[tuple[str, ...], ...] = (
    ("Then", "Also,", "Next,", "It also helps to"),
    ("Then", "After that,", "Besides,", "Remember to", "Moreover,"),
    ("Finally,", "In the end,", "Last but not least,", "And do not forget to"),
)

LINKS_WITHOUT_COMMA: tuple[tuple[str, ...], ...] = (
    ("Then", "Also", "It also helps to"),
    ("Then", "After that", "Remember to", "Moreover", "Next"),
    ("Finally", "In the end", "And do not forget to"),
)

_STOP_WORDS = (
    "about after again ahead along before begin below close could daily every first "
    "great later least little might other quite really shall should since something start still "
    "their there these thing things think those three under until where which while would your "
    "never always nothing anything everything almost another someone somebody everybody everyone "
    "likes without between early using takes whole"
)
CONTENT_STOP_WORDS: frozenset[str] = frozenset(_STOP_WORDS.split())
"""Words too common to be asked for or forbidden."""

GREETINGS: dict[str, str] = {
    "English": "Hello",
    "Spanish": "Hola",
    "French": "Bonjour",
    "German": "Hallo",
    "Italian": "Ciao",
    "Portuguese": "Olá",
    "Dutch": "Hoi",
    "Swedish": "Hej",
}

_NAMES = (
    "Anna Ben Clara David Elena Felix Grace Hugo Ines Jonas Karin Leo Maria Nils Olga Paul Rosa "
    "Simon Tessa Victor Wendy Omar Lucia Peter"
)
NAMES: tuple[str, ...] = tuple(_NAMES.split())

CLOSINGS: tuple[str, ...] = tuple(
    """Good luck with it
Have a lovely day
Happy to help
That is all for now
Step by step
Enjoy every minute
See you soon
Take your time
With warm wishes
You can do it
Keep it simple
Stay curious
All the best
Until next time
Have fun out there
Practice makes perfect
Little by little
Thanks for asking
Hope this helps
Trust the process
Be patient with yourself
Let me know how it goes
Small steps count
The rest is up to you
Never stop learning
Wishing you success
Yours as always
End of the list
Nothing more to add
Now it is your turn
Greetings from the team
Start today""".splitlines()
)

_START_WORDS = (
    "Certainly Honestly Basically Clearly Naturally Usually Luckily Today Ideally Simply "
    "Absolutely Generally Surely Obviously"
)
START_WORDS: tuple[str, ...] = tuple(_START_WORDS.split())

QUESTIONS: tuple[str, ...] = (
    "Which of these will you try first?",
    "What would you like to know next?",
    "Does that sound good to you?",
    "Shall we make a plan together?",
    "Would you like more ideas?",
    "When do you want to begin?",
    "What do you think about it?",
    "Is there anything you would add?",
    "Are you ready to give it a try?",
    "Which part seems the hardest to you?",
)
