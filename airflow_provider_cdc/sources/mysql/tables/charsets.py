"""MySQL's character sets, as a table that is fast to import.

The codecs are Python's, with corrections where the server's tables differ; the tests compare every code with the
server. Where the server differs from the standard of the same name (armscii8, geostd8, swe7's 0x7F), the table follows
the server.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Charset:
    """A character set.

    :param size: the maximum number of bytes per character; MySQL computes the byte length of a column with it.
    :param codec: the name of Python's codec.
    :param unit: the number of bytes of a code unit in a fixed-width Unicode encoding; 1 for all other encodings.
    :param ascii: whether bytes below 0x80 are ASCII. This is true for all character sets with ``unit`` 1, except for
        one of them.
    :param corrections: the codes at which the server differs from the codec, with the server's code points; None: the
        server has no character for the code.
    :param ambiguous: true if two codes stand for the same character, so that different keys can have the same text.
    """

    size: int
    codec: str
    unit: int = 1
    ascii: bool = True
    corrections: Mapping[int, int | None] = field(default_factory=dict)
    ambiguous: bool = False


def _without(*codes: int) -> dict[int, int | None]:
    return dict.fromkeys(codes)


def _run(first: int, characters: str) -> dict[int, int]:
    return {code: ord(character) for code, character in enumerate(characters, first)}


def _users_own() -> dict[int, int]:
    """Map EUC's rows for user-defined characters (ten of two bytes, ten after 0x8F) to Unicode's private use area."""
    codes = (
        plane | row << 8 | cell for plane in (0, 0x8F0000) for row in range(0xF5, 0xFF) for cell in range(0xA1, 0xFF)
    )
    return dict(zip(codes, range(0xE000, 0xE758), strict=True))


UTF8 = "utf-8"
CHARSETS = {
    "utf8mb4": Charset(4, UTF8),
    "utf8mb3": Charset(3, UTF8),
    "ascii": Charset(1, UTF8),
    "ucs2": Charset(2, "utf-16-be", unit=2),
    "utf16": Charset(4, "utf-16-be", unit=2),
    "utf16le": Charset(4, "utf-16-le", unit=2),
    "utf32": Charset(4, "utf-32-be", unit=4),
    # The five bytes that are undefined in cp1252 are control characters in MySQL.
    "latin1": Charset(1, "cp1252", corrections={code: code for code in (0x81, 0x8D, 0x8F, 0x90, 0x9D)}),
    "latin2": Charset(1, "iso8859-2"),
    "latin5": Charset(1, "iso8859-9"),
    "latin7": Charset(1, "iso8859-13"),
    "cp1250": Charset(1, "cp1250"),
    "cp1251": Charset(1, "cp1251"),
    "cp1256": Charset(1, "cp1256", corrections=_without(0x8A, 0x8F, 0x98, 0x9A, 0x9F, 0xAA, 0xC0, 0xFF)),
    "cp1257": Charset(1, "cp1257"),
    "cp850": Charset(1, "cp850"),
    "cp852": Charset(1, "cp852"),
    "cp866": Charset(1, "cp866", corrections={0xFC: 0x207F, 0xFD: 0xB2}),
    "greek": Charset(1, "iso8859-7", corrections={0xA1: 0x2BD, 0xA2: 0x2BC, **_without(0xA4, 0xA5, 0xAA)}),
    "hebrew": Charset(1, "iso8859-8", corrections={0xAF: 0x203E}),
    "hp8": Charset(1, "hp-roman8"),
    "koi8r": Charset(1, "koi8-r"),
    "koi8u": Charset(1, "koi8-u", corrections={0x95: 0x2022}),
    "macce": Charset(1, "mac-latin2"),
    "macroman": Charset(1, "mac-roman"),
    "tis620": Charset(1, "tis-620"),
    "armscii8": Charset(
        1,
        "latin-1",
        corrections=_run(
            0xA1,
            "❁§։)(»«—.՝,-՟…՜՛՞ԱաԲբԳգԴդԵեԶզԷէԸըԹթԺժԻիԼլԽխԾծԿկՀհՁձՂղՃճՄմՅյՆնՇշՈոՉչՊպՋջՌռՍսՎվՏտՐրՑցՒւՓփՔքՕօՖֆ’'",
        ),
        ambiguous=True,
    ),
    "dec8": Charset(
        1,
        "latin-1",
        corrections=_without(0xA4, 0xA6, *range(0xAC, 0xB0), 0xB4, 0xB8, 0xBE, 0xD0, 0xDE, 0xF0, 0xFE, 0xFF)
        | {0xA8: 0xA4, 0xD7: 0x152, 0xDD: 0x178, 0xF7: 0x153, 0xFD: 0xFF},
    ),
    "geostd8": Charset(
        1,
        "cp1252",
        corrections={
            **_without(0x83, 0x88, 0x8A, 0x8C, 0x8E, *range(0x98, 0x9B), 0x9C, 0x9E, 0x9F, *range(0xE6, 0x100)),
            **_run(0xC0, "აბგდევზჱთიკლმნჲოპჟრსტჳუფქღყშჩცძწჭხჴჯჰჵ"),
            0xFD: 0x2116,
        },
    ),
    "keybcs2": Charset(1, "cp437", corrections=_run(0x80, "ČüéďäĎŤčěĚĹÍľĺÄÁÉžŽôöÓůÚýÖÜŠĽÝŘťáíóúňŇŮÔšřŕŔ")),
    "swe7": Charset(
        1,
        "ascii",
        ascii=False,
        corrections={0x40: 0xC9, **_run(0x5B, "ÄÖÅÜ"), 0x60: 0xE9, **_run(0x7B, "äöåü"), **_without(0x7F)},
    ),
    "gbk": Charset(2, "gbk"),
    "gb2312": Charset(2, "gb2312"),
    "euckr": Charset(2, "cp949"),
    "big5": Charset(
        2,
        "big5",
        corrections={
            **_without(0xA15A, 0xA1C3, 0xA1C5, 0xA1FE, 0xA240, 0xA2CC, 0xA2CE),
            **dict(zip(range(0xF9D6, 0xF9DD), (0x7881, 0x92B9, 0x88CF, 0x58BB, 0x6052, 0x7CA7, 0x5AFA), strict=True)),
        },
    ),
    "sjis": Charset(2, "shift_jis", corrections={0x815F: 0x5C}, ambiguous=True),
    "cp932": Charset(2, "cp932", corrections=_without(0x80, 0xA0, 0xFD, 0xFE, 0xFF), ambiguous=True),
    "ujis": Charset(3, "euc_jp", corrections={0xA1C0: 0x5C, **_users_own()}, ambiguous=True),
    # This character set has the characters of the standard, which are mapped as in Windows, and the extensions of NEC
    # and IBM.
    "eucjpms": Charset(
        3,
        "euc_jp",
        corrections={0xA1C1: 0xFF5E, 0xA1C2: 0x2225, 0xA1DD: 0xFF0D, 0xA1F1: 0xFFE0, 0xA1F2: 0xFFE1, 0xA2CC: 0xFFE2}
        | {0x8FA2B7: 0xFF5E, 0x8FA2C3: 0xFFE4}
        | _run(0xADA1, "①②③④⑤⑥⑦⑧⑨⑩⑪⑫⑬⑭⑮⑯⑰⑱⑲⑳ⅠⅡⅢⅣⅤⅥⅦⅧⅨⅩ")
        | _run(0xADC0, "㍉㌔㌢㍍㌘㌧㌃㌶㍑㍗㌍㌦㌣㌫㍊㌻㎜㎝㎞㎎㎏㏄㎡")
        | _run(0xADDF, "㍻〝〟№㏍℡㊤㊥㊦㊧㊨㈱㈲㈹㍾㍽㍼≒≡∫∮∑√⊥∠∟⊿∵∩∪")
        | _run(0x8FF3F3, "ⅰⅱⅲⅳⅴⅵⅶⅷⅸⅹⅠⅡ")
        # Do not edit these characters with an editor that normalizes text, because it would replace 22 of them.
        | _run(
            0x8FF4A1,
            "ⅢⅣⅤⅥⅦⅧⅨⅩ＇＂㈱№℡炻仼僴凬匇匤﨎咊坙﨏塚增寬峵嵓﨑德悅愠敎昻晥晴朗栁﨓﨔橫櫢淸淲瀨凞猪"
            "甁皂皞益礰礼神祥福竧靖精綠緖羽荢﨟薰蘒﨡蠇諸譿賴赶﨣﨤逸郞都鄕﨧﨨閒隆﨩霻靍靑飯飼館馞髙魲鶴黑",
        )
        | _users_own(),
        ambiguous=True,
    ),
    "gb18030": Charset(4, "gb18030"),
}
_WITH_GAPS = frozenset(
    """
    ucs2 cp1250 cp1251 cp1256 cp1257 greek hebrew hp8 tis620 dec8 geostd8 swe7 gbk gb2312 gb18030 euckr big5 sjis cp932
    ujis eucjpms
""".split()
)
# The two editions of the standard swap these two characters.
GB18030_EDITION = {0x1E3F: 0xE7C7, 0xE7C7: 0x1E3F}


def bytes_per_character(charset: str) -> int | None:
    """Return the maximum number of bytes per character; MySQL computes the byte length of a column with it.

    None: the character set is not supported.
    """
    charset_info = CHARSETS.get(charset)
    return charset_info.size if charset_info else None


def is_ambiguous(charset: str) -> bool:
    """Whether two different stored values can be the same text."""
    return CHARSETS[charset].ambiguous


def has_gaps(charset: str) -> bool:
    """Whether the server stores codes that stand for no character.

    In a character set without gaps, every code is a character, or the server rejects values with unassigned codes.
    """
    return charset in _WITH_GAPS
