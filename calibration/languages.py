"""The language that a text is written in, as far as its letters and its commonest words tell. No model.

What is told need not be right to be of use for groups: it must be one fixed function of the prompt, the same
in calibration and in service. A text that does not tell keeps the name of its script.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Mapping

__all__ = ["language_of", "script_of"]

_LETTERS = 500  # letters looked at: enough to tell a script
_WORDS = 200  # words looked at: a prompt shows its language long before

# Words that say little and stand everywhere. One that two languages share counts for both.
_COMMON: Mapping[str, Mapping[str, str]] = {
    "latin": {
        "english": "the of and to is in that it for was are with as be on this by what how many find if "
        "then which each an or from at has have does there can find let calculate solve prove",
        "german": "der die das und ist ein eine einen zu von mit den dem nicht sich wie viele was auf für im "
        "es wird sind hat werden wenn aus welche berechne bestimme",
        "french": "le la les et est un une des de du que qui dans pour pas sur avec combien quelle quel si "
        "au aux ce cette il elle sont calculer trouver",
        "spanish": "el la los las y es un una de del que en por para con cuántos cuál cuánto si no se su al "
        "lo son como calcule encuentra",
        "portuguese": "o a os as e é um uma de do da que em por para com quantos qual não se seu ao são dos "
        "das como calcule encontre",
        "italian": "il lo la i gli le e è un una di del della che in per con quanti quale quanto se non si "
        "al sono come calcola trova",
        "dutch": "de het een en is van in dat op te voor met zijn niet hoeveel wat als aan er ook bij welke "
        "wordt bereken",
        "polish": "i w na z nie się jest to że do jak ile oblicz dla są od który jeśli znajdź",
        "swedish": "och att det i en ett är som på för av med hur många vad den inte om till beräkna",
        "turkish": "ve bir bu için ile ne kaç kadar olan da de mi mı hangi nedir bulunuz hesaplayın",
        "indonesian": "dan yang di ke dari ini itu dengan untuk berapa adalah pada tidak jika apa hitunglah",
        "vietnamese": "và là của có một các cho trong bao nhiêu không được với những hãy tính tìm",
    },
    "cyrillic": {
        "russian": "и в не на что с по как это сколько если найдите чему он она из для к все будет равно",
        "ukrainian": "і в не на що з як це скільки якщо знайдіть чому він вона для до та є буде дорівнює",
        "bulgarian": "и в не на че с по как това колко ако намерете той тя от за е са ще",
    },
    "arabic": {
        "arabic": "في من على ما هو هي أن إلى كم إذا هذا التي الذي عن مع",
        "persian": "در از به که است را این آن با چند اگر چه برای و",
        "urdu": "کے کی میں ہے اور سے کا کو یہ کتنے اگر پر نے",
    },
    "devanagari": {
        "hindi": "है के में की और का से को कितने यदि यह एक पर क्या हैं",
        "marathi": "आहे आणि मध्ये किती जर हे ते एक चा ची चे",
    },
}
_ALONE = {"han": "chinese", "hangul": "korean"}  # scripts of one language; kana are told apart before

_SETS = {
    script: {name: frozenset(words.split()) for name, words in languages.items()}
    for script, languages in _COMMON.items()
}


def language_of(text: str) -> str:
    """The language ("english", "chinese", ...); the script where several use it and the words do not tell."""
    script = script_of(text)
    languages = _SETS.get(script)
    if languages is None:
        return _ALONE.get(script, script)
    words = re.findall(r"[^\W\d_]+", text.casefold())[:_WORDS]
    counts = sorted(
        ((sum(word in common for word in words), name) for name, common in languages.items()), reverse=True
    )
    (most, name), (second, _) = counts[:2]
    return name if most > second else script


def script_of(text: str) -> str:
    """The script of most letters ("latin", "cyrillic", "han", "japanese", ...), "none" without letters.

    Kana beside Chinese characters make a text Japanese.
    """
    letters: list[str] = []
    for letter in text:
        if letter.isalpha():
            letters.append(letter)
            if len(letters) == _LETTERS:
                break
    counts = Counter(_script(letter) for letter in letters)
    if counts["hiragana"] + counts["katakana"] > 0.1 * len(letters) > 0:
        return "japanese"
    return counts.most_common(1)[0][0] if counts else "none"


def _script(letter: str) -> str:
    name = unicodedata.name(letter, "other").split(" ")[0].lower()
    return "han" if name == "cjk" else name
