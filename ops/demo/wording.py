# SPDX-License-Identifier: MIT OR Apache-2.0
"""Random rewording of questions, so that the model learns key words instead of sentences."""

from __future__ import annotations

import random
import re

SUBJECT = (
    "What is {s}?",
    "What's {s}?",
    "what is {s} exactly?",
    "What are {s}?",
    "Explain {s}",
    "Explain {s} to me",
    "Explain what {s} is",
    "Describe {s}",
    "Define {s}",
    "Tell me about {s}",
    "Tell me more about {s}",
    "Tell me what {s} is",
    "Can you explain {s}?",
    "Could you describe {s}?",
    "Could you tell me what {s} is?",
    "Can you tell me about {s}?",
    "What do you know about {s}?",
    "Do you know what {s} is?",
    "What does {s} mean?",
    "What is meant by {s}?",
    "Help me understand {s}",
    "Give me a short explanation of {s}",
    "Give a brief description of {s}",
    "I want to know about {s}",
    "I would like to learn about {s}",
    "I have a question about {s}",
    "How would you describe {s}?",
    "What can you say about {s}?",
    "Info on {s}",
    "Information about {s}",
    "In simple words, what is {s}?",
    "Remind me what {s} is",
    "So what is {s}?",
    "meaning of {s}",
    "definition of {s}",
    "{s}",
    "{s}?",
    "{s} meaning",
    "{s} explained",
    "{s} explanation",
    "{s} definition",
    "{s} info",
    "about {s}",
)
PURPOSE = (
    "What does {s} do?",
    "What is {s} for?",
    "What's the purpose of {s}?",
    "What is the use of {s}?",
    "What is {s} good for?",
    "What is the effect of {s}?",
    "Explain what {s} does",
    "Tell me what {s} does",
    "Can you tell me what {s} does?",
    "Why would I use {s}?",
    "Why is there {s}?",
    "What happens with {s}?",
    "What role does {s} play?",
    "Describe what {s} does",
    "purpose of {s}",
    "{s} purpose",
    "{s} effect",
    "{s}",
    "use of {s}",
    "What does {s} control?",
    "What does {s} change?",
    "What is the job of {s}?",
    "What is {s} used for?",
    "What is the point of {s}?",
    "What would {s} give me?",
    "What effect has {s}?",
    "What is the function of {s}?",
    "When do I use {s}?",
)
METHOD = (
    "How do I {s}?",
    "How can I {s}?",
    "How to {s}",
    "How do you {s}?",
    "How does one {s}?",
    "How should I {s}?",
    "I want to {s}",
    "I need to {s}",
    "I would like to {s}",
    "What must I do to {s}?",
    "What do I have to do to {s}?",
    "Show me how to {s}",
    "Tell me how to {s}",
    "Explain how to {s}",
    "Steps to {s}",
    "Is there a way to {s}?",
    "Can I {s}?",
    "What is the way to {s}?",
    "Help me {s}",
    "{s} how",
    "I forgot how to {s}",
    "Remind me how to {s}",
    "What is the easiest way to {s}?",
    "How would I {s}?",
    "How is it possible to {s}?",
    "I am trying to {s}",
)
WORKING = (
    "How does {s} work?",
    "Explain how {s} works",
    "How {s} works",
    "Tell me how {s} works",
    "Can you explain how {s} works?",
    "{s} how does it work",
    "Describe how {s} works",
    "What is the idea of {s}?",
    "What is the principle behind {s}?",
    "What happens inside {s}?",
)
REASON = (
    "Why {s}?",
    "Why {s}",
    "Tell me why {s}",
    "Explain why {s}",
    "What is the reason: why {s}?",
    "For what reason {s}?",
    "How come {s}?",
    "Do you know why {s}?",
    "Can you explain why {s}?",
    "I wonder why {s}",
    "I don't understand why {s}",
    "Could you explain why {s}?",
    "What is the cause: why {s}?",
    "Please say why {s}",
)
RULES: tuple[tuple[re.Pattern[str], tuple[str, ...]], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), templates)
    for pattern, templates in (
        (r"how (?:does|do) (.+) work$", WORKING),
        (r"(?:explain )?how (.+) works$", WORKING),
        (r"what (?:does|do) (.+) mean$", SUBJECT),
        (r"(.+) (?:meaning|explained|definition|explanation|overview)$", SUBJECT),
        (r"what (?:does|do) (.+) do$", PURPOSE),
        (r"what is (.+) (?:for|good for)$", PURPOSE),
        (r"(?:what is |what's )?(?:the )?purpose of (.+)$", PURPOSE),
        (r"(?:what is|what's|what are|explain|describe|define|tell me about) (.+)$", SUBJECT),
        (r"(?:how (?:do|can|should|would) (?:i|you|we|one)|how to) (.+)$", METHOD),
        (r"(?:explain |tell me )?why (.+)$", REASON),
    )
)
OPENINGS = (
    "please ",
    "Please, ",
    "hi, ",
    "Hi! ",
    "Hello, ",
    "hey, ",
    "Quick question: ",
    "Question: ",
    "I wonder: ",
    "Tell me, ",
    "Please tell me: ",
    "Can you tell me: ",
    "Could you answer this: ",
    "I'd like to know: ",
    "ok, ",
    "So, ",
    "And ",
    "One more thing: ",
    "In short, ",
    "Say, ",
    "Sorry, ",
    "I am new here. ",
    "For a beginner: ",
)
ENDINGS = (
    ", please",
    " please",
    ", please?",
    " thanks",
    ", thank you",
    " in short",
    " in a few words",
    " briefly",
    " exactly",
    " here",
    " in Rondo",
    " in this program",
    " then",
    "??",
    "!",
    " ?",
)
SMALL_WORDS = frozenset(
    re.findall(
        r"\w+",
        "a an the is are was be do does did of in on to for with and or it its i me my you your we "
        "can could should would will that this there here what which how why when where who tell "
        "explain describe define about please give show so one have has by from at as if",
    )
)
EXCHANGES: tuple[tuple[str, ...], ...] = (
    ("folder", "directory"),
    ("tok/s", "tokens per second", "tokens a second"),
    ("big", "large", "huge"),
    ("How big", "How large", "What size"),
    ("how big", "how large", "what size"),
    ("quick", "fast", "rapid"),
    ("fast", "quick", "speedy"),
    ("show", "display", "present"),
    ("shows", "displays", "presents"),
    ("start", "begin", "launch", "open"),
    ("stop", "halt", "interrupt", "end"),
    ("need", "require"),
    ("needs", "requires"),
    ("switch", "knob", "setting", "option", "flag"),
    ("program", "app", "application", "software", "tool"),
    ("error", "failure", "problem"),
    ("picture", "image"),
    ("happens if", "happens when", "follows when"),
    ("pick", "choose", "select"),
    ("keyboard shortcuts", "hotkeys", "shortcut keys", "key bindings"),
    ("GPU", "graphics card", "video card", "graphics processor"),
    ("computer", "machine", "PC"),
    ("machine", "computer", "PC"),
    ("command", "cli command", "terminal command"),
    ("benefit", "advantage", "gain"),
    ("reply", "answer", "response"),
    ("answer", "reply", "response", "output"),
    ("message", "prompt", "question"),
    ("memory bandwidth", "memory speed", "read rate of memory"),
    ("memory", "RAM"),
    ("memory bound", "limited by memory", "bound by memory", "memory limited"),
    ("licence", "license"),
    ("install", "set up", "get"),
    ("clear", "erase", "empty", "delete"),
    ("delete", "remove", "erase"),
    ("colour", "color"),
    ("differ", "differ", "vary"),
    ("difference", "distinction"),
    ("important", "essential"),
    ("size", "amount", "footprint"),
    ("bytes", "storage"),
    ("store", "keep", "save"),
    ("stored", "kept", "saved", "held"),
    ("made", "created", "built"),
    ("guesses", "drafts", "proposals"),
    ("check", "verify", "validate"),
    ("file", "document"),
    ("slow", "sluggish"),
    ("text", "words"),
    ("list", "enumerate"),
    ("kind", "type", "sort"),
    ("meaning", "sense"),
    ("measure", "determine", "find out"),
    ("measured", "determined"),
    ("allowed", "permitted"),
    ("wrong", "incorrect", "bad"),
    ("purpose", "goal", "aim"),
    ("work", "function", "operate"),
)


def reword(questions: tuple[str, ...], rng: random.Random) -> str:
    """A question drawn from the phrasings and varied: template, words, case, marks, typing."""
    question = rng.choice(questions)
    if rng.random() < 0.35:
        return question.lower() if rng.random() < 0.3 else question
    kind = rng.random()
    if kind < 0.10:
        question = _keywords(question, questions, rng)
    elif kind < 0.62:
        question = _template(question, rng)
    if rng.random() < 0.25:
        question = _exchange(question, rng)
    if rng.random() < 0.25:
        question = _drop_words(question, rng)
    if rng.random() < 0.22:
        question = rng.choice(OPENINGS) + _lower_first(question)
    if rng.random() < 0.12:
        question = question.rstrip("?!. ") + rng.choice(ENDINGS)
    if rng.random() < 0.08:
        question = _typing_slip(question, rng)
    mark = rng.random()
    if mark < 0.35:
        question = question.rstrip("?!. ")
    elif mark < 0.5 and question[-1:].isalnum():
        question += "?"
    case = rng.random()
    if case < 0.28:
        question = question.lower()
    elif case < 0.55:
        question = question[:1].upper() + question[1:]
    return question.strip() or rng.choice(questions)


def _lower_first(text: str) -> str:
    first = text.split(" ", 1)[0]
    return (
        text if first.isupper() or first[1:] != first[1:].lower() else text[:1].lower() + text[1:]
    )


def _template(question: str, rng: random.Random) -> str:
    bare = question.rstrip("?!. ")
    for pattern, templates in RULES:
        found = pattern.match(bare)
        if found:
            return rng.choice(templates).format(s=found.group(1))
    return question


def _keywords(question: str, questions: tuple[str, ...], rng: random.Random) -> str:
    text = question + " " + rng.choice(questions) if rng.random() < 0.3 else question
    words = [w.strip("?!.,:;") for w in text.split()]
    content = list(dict.fromkeys(w for w in words if w and w.lower() not in SMALL_WORDS))
    if rng.random() < 0.4:
        rng.shuffle(content)
    return " ".join(content) or question


def _drop_words(question: str, rng: random.Random) -> str:
    kept = []
    for word in question.split():
        chance = 0.35 if word.lower().strip("?,.") in SMALL_WORDS else 0.10
        if rng.random() >= chance:
            kept.append(word)
    return " ".join(kept) if len(kept) >= 2 else question


def _exchange(question: str, rng: random.Random) -> str:
    for group in rng.sample(EXCHANGES, len(EXCHANGES)):
        for word in group:
            if re.search(rf"\b{re.escape(word)}\b", question):
                other = rng.choice([w for w in group if w != word])
                return re.sub(rf"\b{re.escape(word)}\b", other, question, count=1)
    return question


def _typing_slip(question: str, rng: random.Random) -> str:
    words = question.split(" ")
    long = [i for i, word in enumerate(words) if len(word) >= 5 and word.isalpha()]
    if not long:
        return question
    i = rng.choice(long)
    word, at = words[i], rng.randrange(1, len(words[i]) - 2)
    slips = (
        word[:at] + word[at + 1] + word[at] + word[at + 2 :],
        word[:at] + word[at + 1 :],
        word[:at] + word[at] + word[at:],
    )
    words[i] = rng.choice(slips)
    return " ".join(words)
