"""Natural text from text that was tokenised with spaces, as DailyDialog is."""

from __future__ import annotations

import re

_CHARACTERS = str.maketrans("’‘′。、", "'''.,")
_SUFFIXES = "s|t|m|re|ve|ll|d"  # after an apostrophe
_DOMAINS = "com|org|net|edu|gov|cn|uk|html?|txt|docx?|exe|pdf|jpg"
_UNITS = "minute|hour|day|night|week|month|year|inch|foot|mile|page|room|bedroom|piece|star|story"

# Applied in this order, before quotes are paired.
_BEFORE = (
    (r"\\ ?(?=')", ""),  # won \ ' t
    (r" \\ ", " / "),
    (r"& ?quot ?[,;]", '"'),
    (r"(?<=\d)(?: -)+ (?=\d)", "-"),  # 1 - - 2
    (r"-(?: -)+", "--"),
    # Contractions; in some, the apostrophe is a quote.
    (rf"(?<=\w) ?' (?=(?:{_SUFFIXES})\b)", "'"),
    (r"(?<=\bI) \" (?=(?:m|ve|ll|d)\b)", "'"),
    (r"\b(o) ' (?=clock\b)", r"\1'"),
    (r"\b(ma) ' (?=am\b)", r"\1'"),
    (r"(?:(?<=\s)|^)' (?=(?:em|cause|til|\d\ds?)\b)", "'"),
)
_AFTER = (
    # Abbreviations: U . S ., Ph . D ., G . P . A ?
    (r"\bPh \. D\b(?: \.)?", "Ph.D."),
    (r"(?<![A-Za-z'.])[A-Za-z] \.(?: [A-Za-z] \.)+(?: [A-Z](?= [,.?!)]|$))?", "abbreviation"),
    # Numbers: 10 : 30, 16 . 50, 5 , 000, $ 5, 60 %
    (r"(?<=\d) : (?=\d\d\b)", ":"),
    (r"(?<=\d) \. (?=\d\d\b)", "."),
    (r"(?<![\d,])(\d{1,3}(?:,\d{3})*) , (?=\d{3}\b(?! , \d{1,2}\b))", r"\1,"),
    (r"([$£¥€#]) (?=\d)", r"\1"),
    (r"(?<=\d) %", "%"),
    # Dots: the marks of one pause, and spaces that are missing after a sentence
    (r"\.(?: ?\.){2,}", "..."),
    (r"(?<=\w)\.(?=[A-Z][a-z'])|(?<=[a-z\d])\.(?=[IA]\b)", ". "),
    (rf"(?<=[a-z'][a-z]|OK)(?<!www)\.(?=[a-z])(?!(?:{_DOMAINS})\b)", ". "),
    (r"\.\.\.(?=\w)", "... "),
    (r"(?<=[?!])(?=[A-Za-z])", " "),
    # Words of several parts: H - U - A - N - G, 30 - day, L / C
    (r"\b([A-Z]) - (?=[A-Z]\b(?!'))", r"\1-"),
    (rf"(?<=\d) - (?=(?:{_UNITS})\b)", "-"),
    (r"(?<=\w) / (?=\w)", "/"),
    # Spaces inside brackets and before marks
    (r"([(\[{]) +", r"\1"),
    (r" +(?=[)\]},.;:!?])", ""),
    (r"\s+", " "),
)
_RULES_BEFORE = [(re.compile(pattern, re.IGNORECASE), new) for pattern, new in _BEFORE]
_RULES_AFTER = [(re.compile(pattern), new) for pattern, new in _AFTER]
_CONTRACTION = re.compile(rf"(?<=[a-zI]')(?:{_SUFFIXES.title()})\b")
_CURLY = re.compile(r"“ ?| ?”")
_MARKS = frozenset(".,;:!?)")


def detokenise(text: str) -> str:
    """Text with the spaces and apostrophes that it had before it was tokenised.

    >>> detokenise("I don ' t know . That's too far.Can you say \\" hello \\" at 10 : 30 ?")
    'I don\\'t know. That\\'s too far. Can you say "hello" at 10:30?'
    >>> detokenise("Let ’ s see ... it's $ 5 , or 60 % off in the ladies ' room !")
    "Let's see... it's $5, or 60% off in the ladies' room!"
    """
    text = " ".join(text.split()).translate(_CHARACTERS)  # long runs of spaces are slow to match
    for pattern, new in _RULES_BEFORE:
        text = pattern.sub(new, text)
    text = _CONTRACTION.sub(lambda match: match[0].lower(), text)  # I ' Ve
    text = _CURLY.sub(lambda match: ' "' if match[0][0] == "“" else '" ', text)
    text = _paired(_paired(text, '"'), "'")
    for pattern, new in _RULES_AFTER:
        if new == "abbreviation":
            text = pattern.sub(lambda match: match[0].replace(" ", ""), text)
        else:
            text = pattern.sub(new, text)
    return text.strip()


def _paired(text: str, quote: str) -> str:
    """Quotes that stand alone, attached to what they enclose. One that closes nothing belongs to
    the word before it, as in "the ladies ' room".

    >>> _paired('It says " no " to a 16 " pan', '"')
    'It says "no" to a 16" pan'
    """
    if f" {quote} " not in f" {text} ":
        return text
    words = text.split()
    later = words.count(quote)  # quotes after this word
    is_open = False
    result = ""
    space = ""  # before the next word
    for i, word in enumerate(words):
        if word != quote:
            result += space + word
            space = " "
            if quote == '"' and quote in word:  # attached to its word already
                is_open = word.startswith(quote) and not word.endswith(quote)
            continue

        later -= 1
        before = words[i - 1] if i > 0 else ""
        if is_open:
            is_open = False
        elif quote == "'":
            is_open = later > 0 and not (before.endswith("s") and later % 2 == 0)
        else:
            is_open = i + 1 < len(words) and words[i + 1] not in _MARKS
            is_open &= later > 0 or not before.isdecimal()
        result += space + quote if is_open else quote
        space = "" if is_open else " "
    return result
