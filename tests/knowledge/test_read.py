"""The content of each kind of file: headings, blocks, and their positions."""

import io

import pytest

from anabranch.knowledge._read_main import (
    KIND_BY_EXTENSION,
    UnreadableFile,
    decode,
    read_file,
    read_text,
)

pytest.importorskip("trafilatura")


def read(path, data, *, most=50_000_000):
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    kind = KIND_BY_EXTENSION[path.suffix[1:]]
    request = {"path": str(path), "kind": kind, "known": None, "max_bytes": most}
    return [tuple(block) for block in read_file(request)["blocks"]]


def short(blocks):
    """Return kind, text, level and line."""
    return [block[:4] for block in blocks]


# --- Markdown


def test_front_matter_is_a_block_and_its_lines_count(tmp_path):
    """Its title is found, and later lines keep their numbers."""
    text = "---\ntitle: A page\ntags: [x]\n---\n\n# One\n\ntext\n"
    assert short(read(tmp_path / "a.md", text)) == [
        ("code", "---\ntitle: A page\ntags: [x]\n---", 0, 1),
        ("heading", "One", 1, 6),
        ("text", "text", 0, 8),
    ]


def test_a_line_at_the_top_is_no_front_matter():
    """A page that begins with a rule loses no text."""
    assert short(read_text("---\nsetting: none\n# One\ntext", "markdown"))[-2:] == [
        ("heading", "One", 1, 3),
        ("text", "text", 0, 4),
    ]


def test_headings_of_both_kinds_are_read_as_they_are_written():
    """Also with heading marks in their text, and with two lines."""
    text = "# C# ##\n\nOne\nof two\n===\n\nTwo\n---\n\n####### seven\n\n#no\n\n## -a-\n"
    blocks = short(read_text(text, "markdown"))
    assert [block for block in blocks if block[0] == "heading"] == [
        ("heading", "C#", 1, 1),
        ("heading", "One of two", 1, 3),
        ("heading", "Two", 2, 7),
        ("heading", "-a-", 2, 14),
    ]


def test_what_only_looks_like_a_heading_is_none():
    """In fences, HTML, indented code and quotes."""
    text = "```sh\n# a\n```\n\n~~~\n# b\n\n# c\n~~~\n\n<div>\n# d\n</div>\n\n    # e\n\n> # f\n"
    blocks = read_text(text, "markdown")
    assert {kind for kind, *_ in blocks} == {"code", "text"}
    assert short(blocks)[:2] == [
        ("code", "```sh\n# a\n```", 0, 1),
        ("code", "~~~\n# b\n\n# c\n~~~", 0, 5),
    ]


def test_a_fence_that_is_never_closed_goes_to_the_end():
    """As in other readers of Markdown."""
    assert short(read_text("```\n# a\n\n# b", "markdown")) == [("code", "```\n# a\n\n# b", 0, 1)]


def test_lists_and_tables_are_blocks_as_a_whole():
    """Including nested items."""
    text = "- a\n  - b\n\n    more\n  - c\n\n| x | y |\n|---|---|\n| 1 | 2 |\n\nafter\n"
    blocks = [(block[1].strip("\n"), block[3]) for block in read_text(text, "markdown")]
    blocks = [block for block in blocks if block[0]]
    assert blocks == [
        ("- a\n  - b\n\n    more\n  - c", 1),
        ("| x | y |\n|---|---|\n| 1 | 2 |", 7),
        ("after", 11),
    ]


def test_targets_of_links_are_not_lost():
    """They are not part of a rendered page, but of the file."""
    assert ("text", "[a]: http://x.org 'y'", 0, 1) in [
        (kind, text.strip(), level, line)
        for kind, text, level, line, _ in read_text("[a]: http://x.org 'y'\n\nb", "markdown")
    ]


def test_a_heading_that_is_too_long_stands_below_itself():
    """Shortened as a heading, and complete as text."""
    blocks = read_text(f"# {'word ' * 100}", "markdown")
    assert len(blocks[0][1]) == 300
    assert blocks[1][1].split() == ["word"] * 100


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_lines_are_those_of_any_system(end):
    """With any line ends."""
    text = end.join(["# One", "", "a", "b", "", "```", "x", "```", ""])
    assert [block[3] for block in read_text(text, "markdown") if block[1].strip()] == [1, 3, 6]


# --- source code and text


def test_code_is_cut_where_blocks_begin_at_the_left_edge(tmp_path):
    """Each is called after its first line."""
    text = (
        '\n\n"""Doc."""\n\nimport os\n\n\ndef f():\n    a = 1\n\n    return a\n\n\n@x\nclass A:\n'
    )
    found = read(tmp_path / "a.py", text)
    assert [block[1] for block in found if block[0] == "heading"] == [
        '"""Doc."""',
        "import os",
        "def f():",
        "@x",
    ]
    assert ("code", "def f():\n    a = 1\n\n    return a", 0, 8) in short(found)


def test_a_text_is_its_paragraphs(tmp_path):
    """With their lines; several empty lines are one separator."""
    found = read(tmp_path / "a.txt", "\n\none\nmore\n\n\n  \ntwo\n")
    assert short(found) == [("text", "one\nmore", 0, 3), ("text", "two", 0, 8)]


GERMAN = "Die Gr\u00f6\u00dfe der B\u00e4ume \u00fcberrascht J\u00fcrgen sehr.\n"
FRENCH = "Le caf\u00e9 est \u00e0 c\u00f4t\u00e9 de l'h\u00f4tel, pr\u00e8s de la for\u00eat.\n"
QUOTED = "\u201eSch\u00f6n\u201c, sagte er \u2013 und kostete 5 \u20ac.\n"
RUSSIAN = (
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u043a\u0430\u043a \u0434\u0435\u043b\u0430? "
    "\u042d\u0442\u043e \u0442\u0435\u043a\u0441\u0442 \u043d\u0430 "
    "\u0440\u0443\u0441\u0441\u043a\u043e\u043c \u044f\u0437\u044b\u043a\u0435.\n"
)
CHINESE = "\u8fd9\u662f\u4e00\u4e2a\u4e2d\u6587\u6587\u672c\uff0c\u7528\u4e8e\u6d4b\u8bd5\u3002\n"


@pytest.mark.parametrize(
    ("text", "codec"),
    [
        *((text, codec) for text in (GERMAN, FRENCH) for codec in ("latin-1", "cp1252", "utf-8")),
        *((QUOTED, codec) for codec in ("cp1252", "utf-8", "utf-8-sig", "utf-16", "utf-32")),
        *((text, "utf-16-le") for text in (GERMAN, FRENCH, QUOTED, "plain")),
        *((text, "utf-16-be") for text in (GERMAN, FRENCH, QUOTED, "plain")),
        *((text, codec) for text in (RUSSIAN, CHINESE) for codec in ("utf-8", "utf-16")),
        *((RUSSIAN, "cp1251"), (RUSSIAN, "koi8-r"), (CHINESE, "gb18030")),
        *(
            ("caf\u00e9", "latin-1"),
            ("", "utf-8"),
            ("", "utf-8-sig"),
            ("", "utf-16"),
            ("a", "ascii"),
        ),
    ],
)
def test_a_text_in_any_usual_encoding_is_read(text, codec):
    """With and without a mark at its beginning."""
    assert decode(text.encode(codec)) == text


def test_an_encoding_that_lies_is_not_believed():
    """A declaration is used only if the bytes can be decoded with it."""
    assert decode(b"\xff\xfe" + b"plain text in ASCII") == "plain text in ASCII"
    assert decode(b"\xef\xbb\xbf" + GERMAN.encode("cp1252")).startswith("Die Gr")
    lying = f'<meta charset="utf-8"><p>{GERMAN}'
    assert decode(lying.encode("cp1252"), "html") == lying
    unknown = f'<meta charset="utf-9"><p>{GERMAN}'
    assert decode(unknown.encode("cp1252"), "html") == unknown
    said = '<?xml version="1.0" encoding="koi8-r"?><a>\u0434\u0430</a>'
    assert decode(said.encode("koi8-r")) == said


def test_a_few_wrong_bytes_make_no_other_encoding():
    """UTF-8 that was cut inside a character is still UTF-8."""
    data = (RUSSIAN * 20).encode()
    assert decode(data[:-3] + b"\xd0").startswith(RUSSIAN)


@pytest.mark.parametrize(
    "data",
    [
        bytes(range(256)) * 20,
        b"\x89PNG\r\n\x1a\n" + bytes(range(256)),
        b"\0" * 1000,
        b"\xff\xfe" + bytes(range(1, 32)) * 40,
        b"\x7fELF\x02\x01\x01" + b"\0" * 9 + b"text" * 10,
        bytes((number * 167 + number // 7) % 255 + 1 for number in range(5000)),
    ],
)
def test_what_is_no_text_is_refused(data):
    """Whatever its name is."""
    with pytest.raises(UnreadableFile, match=r"is binary, not text|has no known text"):
        decode(data)


def test_a_zero_in_a_text_is_left_out(tmp_path):
    """The rest is read."""
    assert short(read(tmp_path / "a.txt", b"one\0 two" + b" three" * 20))[0][1][:8] == "one two "


# --- HTML

PAGE = """<!doctype html><html><head><title>Pay &amp; go</title>
<script>var hidden = 1</script></head>
<body><nav><ul><li><a href="/">Home</a></li><li><a href="/x">Prices of menus</a></li></ul></nav>
<main><article><h1>Invoices</h1><p>Invoices are paid within thirty days of their date, or earlier.
</p><h2>Late ones</h2><p>Late ones are <b>charged</b> with interest from the day after.</p>
<table><tr><th>Days</th><th>Rate</th></tr><tr><td>30</td><td>two percent</td></tr></table>
</article></main><footer>Imprint and cookies</footer></body></html>"""


def test_of_a_page_its_article_is_read_without_menus(tmp_path):
    """With its title, headings and tables."""
    found = read(tmp_path / "a.html", PAGE)
    text = "\n".join(block[1] for block in found)
    assert [block[1] for block in found if block[0] == "heading"] == [
        "Pay & go",
        "Invoices",
        "Late ones",
    ]
    assert "thirty days" in text
    assert "two percent" in text
    assert not {word for word in ("Home", "menus", "hidden", "cookies") if word in text}
    assert {block[3] for block in found} == {0}


@pytest.mark.parametrize(
    "page",
    [
        "<p>Only this is here.",
        "<?xml version='1.0' encoding='utf-8'?><html><p>Only this is here.</p></html>",
        "<html><head><style>p {}</style><script>let no</script></head><div>Only this <b>is here.",
        "Only this is here.",
        "</div></p><<b>Only this is here.<!-- no",
        "<table><tr><td>Only this is here.",
    ],
)
def test_a_page_without_an_article_or_a_broken_one_is_read_whole(tmp_path, page):
    """Except elements that browsers do not show."""
    text = " ".join(" ".join(block[1] for block in read(tmp_path / "a.html", page)).split())
    assert "Only this" in text
    assert "is here." in text
    assert "let no" not in text
    assert "p {}" not in text


@pytest.mark.parametrize("page", ["", " ", "<html></html>", "<!-- -->", "<script>a</script>", "<"])
def test_a_page_with_nothing_in_it_has_no_text(tmp_path, page):
    """It is not an error."""
    assert [block for block in read(tmp_path / "a.html", page) if block[1] != "<"] == []


@pytest.mark.parametrize("tag", ["div", "b", "table><tr><td", "ul><li", "blockquote"])
def test_deeply_nested_pages_are_read(tmp_path, tag):
    """Deeper than the recursion limit."""
    found = read(tmp_path / "a.html", f"<{tag}>" * 3000 + "At the bottom of it all.")
    assert all(len(block[1]) < 100_000 for block in found)


# --- PDF


def pdf(*pages, title=None):
    """Make a PDF by hand: pypdf writes no text."""
    pypdf = pytest.importorskip("pypdf")
    from pypdf.generic import DecodedStreamObject, DictionaryObject, NameObject

    writer = pypdf.PdfWriter()
    font = DictionaryObject(
        {
            NameObject("/Type"): NameObject("/Font"),
            NameObject("/Subtype"): NameObject("/Type1"),
            NameObject("/BaseFont"): NameObject("/Helvetica"),
        }
    )
    for text in pages:
        page = writer.add_blank_page(300, 300)
        stream = DecodedStreamObject()
        rows = "".join(f"({row}) Tj 0 -14 Td " for row in text.split("\n"))
        stream.set_data(f"BT /F1 12 Tf 10 280 Td {rows} ET".encode("latin-1"))
        page[NameObject("/Contents")] = writer._add_object(stream)
        fonts = DictionaryObject({NameObject("/F1"): writer._add_object(font)})
        page[NameObject("/Resources")] = DictionaryObject({NameObject("/Font"): fonts})
    if title:
        writer.add_metadata({"/Title": title})
    return writer


def written(writer):
    out = io.BytesIO()
    writer.write(out)
    return out.getvalue()


def test_the_pages_of_a_pdf_are_read(tmp_path):
    """Each block says its page; the title is the heading above all."""
    found = read(tmp_path / "a.pdf", written(pdf("First page", "Second\npage", title="A paper")))
    assert found == [
        ("heading", "A paper", 1, 0, 0),
        ("text", "First page", 0, 0, 1),
        ("text", "Second\npage", 0, 0, 2),
    ]


def test_a_pdf_with_a_password_is_refused_and_one_without_is_read(tmp_path):
    """An encrypted one without a password is read."""
    writer = pdf("Open to all")
    writer.encrypt("", "owner", algorithm="RC4-128")
    assert read(tmp_path / "a.pdf", written(writer))[0][1] == "Open to all"
    writer = pdf("Secret")
    writer.encrypt("word", "owner", algorithm="RC4-128")
    with pytest.raises(UnreadableFile, match="is encrypted"):
        read(tmp_path / "b.pdf", written(writer))


@pytest.mark.parametrize("pages", [(), ("",), ("", " ")])
def test_a_pdf_without_text_is_refused(tmp_path, pages):
    """Not taken as empty: its pages may be images."""
    with pytest.raises(UnreadableFile, match="has no text"):
        read(tmp_path / "a.pdf", written(pdf(*pages)))


def test_a_pdf_whose_table_of_objects_is_broken_is_read(tmp_path):
    """As in other viewers."""
    data = written(pdf("Still here"))
    broken = data.replace(b"startxref\n", b"startxref\n9")
    assert read(tmp_path / "a.pdf", broken)[0][1] == "Still here"


# --- Word


def docx(fill):
    library = pytest.importorskip("docx")
    document = library.Document()
    fill(document)
    out = io.BytesIO()
    document.save(out)
    return out.getvalue()


def test_headings_paragraphs_and_tables_of_a_word_document_are_read(tmp_path):
    """In order, with nested tables."""

    def fill(document):
        document.add_heading("The title", 0)
        document.add_paragraph("Begin.")
        document.add_heading("Part", 2)
        table = document.add_table(2, 2)
        for number, cell in enumerate(cell for row in table.rows for cell in row.cells):
            cell.text = f"cell {number}"
        table.cell(1, 1).add_table(1, 1).cell(0, 0).text = "within"
        document.add_paragraph("")
        document.add_paragraph("End.")

    assert short(read(tmp_path / "a.docx", docx(fill))) == [
        ("heading", "The title", 1, 0),
        ("text", "Begin.", 0, 0),
        ("heading", "Part", 2, 0),
        ("text", "cell 0 | cell 1\ncell 2 | cell 3 within", 0, 0),
        ("text", "End.", 0, 0),
    ]


def test_a_merged_cell_is_read_once(tmp_path):
    """The file repeats it in its row."""

    def fill(document):
        table = document.add_table(1, 3)
        table.cell(0, 0).merge(table.cell(0, 1)).text = "wide"
        table.cell(0, 2).text = "thin"

    assert read(tmp_path / "a.docx", docx(fill))[0][1] == "wide | thin"
