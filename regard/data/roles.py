"""Roles of the columns of a table, and the names that columns have."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

TURN_KEYS = ("turns", "dialog", "dialogue", "conversation", "messages")  # of a list of turns

Column = str | int | None
Holds = Literal[
    "text", "label", "id", "number", "date", "picture", "sound", "constant", "nested", "empty"
]

PICTURES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff"})
SOUNDS = frozenset({".wav", ".flac", ".ogg", ".oga", ".opus", ".aiff", ".aif", ".au"})


class Role(NamedTuple):
    """One side of an example: its word, the field of a recipe that names its column, the names it
    is known by, and what its column may hold."""

    word: str
    field: str
    names: tuple[str, ...]
    holds: frozenset[Holds]


class Roles(NamedTuple):
    source: Role
    target: Role


LABEL_NAMES = ("label", "class", "sentiment")
SOURCE_NAMES = (
    *("prompt", "source", "question", "input", "instruction"),
    *("text", "src", "sentence", "review"),
)
REPLY_NAMES = ("reply", "target", "answer", "output", "response", "completion", "tgt")
TARGET_NAMES = (*REPLY_NAMES, *LABEL_NAMES)
PICTURE_NAMES = ("path", "file", "image", "picture", "filename", "file_name")
CAPTION_NAMES = ("text", "caption", "sentence", "description")
SOUND_NAMES = ("path", "file", "audio", "wav", "sound", "filename", "audio_filepath", "file_name")
TRANSCRIPT_NAMES = ("text", "sentence", "transcript", "transcription", "label", "normalized_text")

# One of each in the first row make it a header: no source here translates into a target there.
FOREIGN_SOURCES = (
    *("frage", "eingabe", "pregunta", "entrada", "pergunta", "domanda", "question", "vraag"),
    "pytanie",
    *("вопрос", "问题", "問題", "質問", "질문", "سؤال", "प्रश्न", "soru"),
)
FOREIGN_TARGETS = (
    *("antwort", "ausgabe", "respuesta", "salida", "resposta", "risposta", "réponse"),
    *("antwoord", "odpowiedź"),
    *("ответ", "答案", "回答", "답변", "جواب", "उत्तर", "cevap"),
)
# Words that say too little to choose a column when they are only a part of its name.
VAGUE = {
    *("text", "sentence", "input", "source", "output", "target", "review"),
    *(*PICTURE_NAMES, *SOUND_NAMES),
}
INSTRUCTION = "instruction"  # with INPUT, a prompt in two columns, as Alpaca has it
INPUT = "input"
LANGUAGES = {
    *("english", "german", "french", "spanish", "italian", "portuguese", "dutch", "polish"),
    *("czech", "russian", "chinese", "japanese", "korean", "arabic", "turkish", "swedish"),
    *("englisch", "deutsch", "französisch", "francais", "français", "anglais", "español"),
    *("en", "de", "fr", "es", "it", "pt", "nl", "pl", "cs", "ru", "zh", "ja", "ko", "ar", "sv"),
}
# What other columns are called: two of them in the first row make it a header.
OTHER_NAMES = {
    *("name", "first_name", "last_name", "firstname", "lastname", "surname", "author", "speaker"),
    *("city", "country", "state", "street", "address", "email", "phone", "company", "user"),
    *("title", "quote", "date", "time", "year", "url", "link", "comment", "notes", "tags"),
    *("gender", "age", "price", "duration", "recorded", "split", "type", "status", "id"),
}
# What columns of labels are called. A table may have several, so such a name alone chooses none.
LABEL_LIKE = {
    *LABEL_NAMES,
    *("category", "intent", "emotion", "topic", "stars", "rating", "score", "grade"),
    *("polarity", "language"),
    *("kategorie", "klasse", "stimmung", "bewertung", "sterne", "note", "thema"),
    *("etiqueta", "categoría", "categoria", "estrellas", "catégorie", "étoiles", "étiquette"),
    "классификация",
    *("оценка", "метка", "标签", "类别", "评分", "ラベル", "별점"),
}
ID_NAMES = re.compile(
    r"(?i:(?:.*[_ .-])?(?:id|ids|uuid|guid|nr|no|num|number|index|idx|key|pk|#|row|zeile))"
    r"|.*[a-z]Id|Unnamed.*"
)

TURNS = {  # what people say in a word, and name no column
    *("hello", "hi", "hey", "bye", "goodbye", "thanks", "thx", "please", "welcome", "sorry"),
    *("help", "start", "stop"),
    *("yes", "yeah", "yep", "no", "nope", "ok", "okay", "sure", "maybe", "what", "why", "who"),
    *("how", "fine", "good"),
    *("hallo", "tschüss", "danke", "bitte", "ja", "nein", "doch", "hola", "adiós", "gracias"),
    *("sí", "salut"),
    *("bonjour", "merci", "oui", "non", "ciao", "grazie", "olá", "obrigado", "привет", "да"),
    *("нет", "你好"),
}

TEXT: frozenset[Holds] = frozenset({"text"})
ANSWER: frozenset[Holds] = frozenset({"text", "label"})

PAIRS = Roles(
    Role("source", "source_column", (*SOURCE_NAMES, *FOREIGN_SOURCES), TEXT),
    Role("target", "target_column", (*TARGET_NAMES, *FOREIGN_TARGETS), ANSWER),
)
LABELLED = Roles(
    Role("text", "text_column", (*SOURCE_NAMES, *FOREIGN_SOURCES), TEXT),
    Role("label", "label_column", (*LABEL_NAMES, *REPLY_NAMES, *FOREIGN_TARGETS), ANSWER),
)
CAPTIONED = Roles(
    Role("path", "path_column", PICTURE_NAMES, frozenset({"picture"})),
    Role("text", "text_column", CAPTION_NAMES, ANSWER),
)
SPOKEN = Roles(
    Role("path", "path_column", SOUND_NAMES, frozenset({"sound"})),
    Role("text", "text_column", TRANSCRIPT_NAMES, ANSWER),
)
KNOWN = {
    *SOURCE_NAMES,
    *TARGET_NAMES,
    *PICTURE_NAMES,
    *CAPTION_NAMES,
    *SOUND_NAMES,
    *TRANSCRIPT_NAMES,
}
