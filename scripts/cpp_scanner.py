"""Where the functions of a C++ file are, found by its brackets: quick, and without knowing what it includes."""
import re
from typing import NamedTuple

TOKEN = re.compile(r"""
    (?P<comment> //[^\n]* | /\*.*?\*/ )
  | (?P<raw>     R"(?P<mark>[^()\s\\"]*)\(.*?\)(?P=mark)" )
  | (?P<string>  "(?:\\.|[^"\\\n])*" )
  | (?P<char>    (?<![0-9A-Fa-f])'(?:\\.|[^'\\\n])+' )
  | (?P<directive> ^[ \t]*\#(?:\\\n|/\*.*?\*/|[^\n])* )
  | (?P<word>    [A-Za-z_]\w* )
  | (?P<mark_of_two> :: | -> | == | <= | >= | != )
  | (?P<other>   \S )
""", re.VERBOSE | re.DOTALL | re.MULTILINE)


def tokens_of(text):
    """Words and marks of C++ with their offsets, without comments and preprocessor directives."""
    for match in TOKEN.finditer(text):
        if match.lastgroup not in ("comment", "directive"):
            yield match.group(), match.start()


def outside_brackets(head):
    """The tokens of a declaration's head that stand in no round bracket, nor in the angles of a template's head."""
    kept, depth, angles = [], 0, 0
    for token, _ in head:
        if token == "<" and (angles or (kept and kept[-1] == "template")):
            angles += 1
        elif token == ">" and angles:
            angles -= 1
        elif angles:
            pass
        elif token == "(":
            depth += 1
            kept.append(token)
        elif token == ")":
            depth -= 1
            kept.append(token)
        elif depth == 0:
            kept.append(token)
    return kept


def kind_of(head):
    """What an opening brace begins outside of functions: a scope to look into, a function, or a value."""
    words = outside_brackets(head)
    if words.count("(") > words.count(")"):
        return "value"  # a default argument
    if not words or "namespace" in words or words[0] == "extern" and words[-1].startswith('"'):
        return "scope"
    if "=" in words and "operator" not in words:
        return "function" if "[" in words[words.index("="):] else "value"  # a lambda, or {...}
    if {"class", "struct", "union", "enum"} & set(words) and words[-1] != ")":
        return "scope"
    if "(" not in words:
        return "value"
    in_list = ":" in words[words.index("("):]  # of what a constructor initialises: Name() : a_(1), b_{2} {
    return "value" if in_list and words[-1] not in (")", "}") else "function"


class Declaration(NamedTuple):
    """What stands in a namespace or a class: a function with its body, a scope's opening, or a plain declaration."""
    kind: str
    start: int  # offsets of the first character and the last
    end: int
    head: list  # its tokens, without the body
    scopes: tuple  # names of the classes and namespaces around it


def is_open(head):
    tokens = [name for name, _ in head]
    return tokens.count("(") > tokens.count(")")


def name_of_scope(head):
    words = outside_brackets(head)
    keys = [i for i, word in enumerate(words) if word in ("namespace", "class", "struct", "union", "enum")]
    names = [word for word in words[keys[-1] + 1:] if re.match(r"[A-Za-z_]", word)] if keys else []
    return next((name for name in names if name not in ("alignas", "nodiscard")), "")


def declarations_of(text):
    """All declarations of a file in their order, those inside of functions aside."""
    head, skipped, inside, scopes = [], 0, None, []

    def declaration(kind, end):
        return Declaration(kind, head[0][1], end, [name for name, _ in head], tuple(scopes))

    for token, offset in tokens_of(text):
        if skipped:
            skipped += (token == "{") - (token == "}")
            if skipped == 0 and inside:
                yield declaration("function", offset)
                head = []
            elif skipped == 0:
                head.append(("}", offset))
        elif token == "{":
            kind = kind_of(head)
            if kind != "scope":
                skipped, inside = 1, kind == "function"
                continue
            if head:
                yield declaration("scope", offset)
            scopes.append(name_of_scope(head))
            head = []
        elif token == "}":
            if scopes:
                scopes.pop()
            head = []
        elif token == ";" and not is_open(head):
            if any(name not in "()" for name, _ in head):  # not what is left of a lambda that is called
                yield declaration("plain", offset)
            head = []
        elif token == ":" and head and head[-1][0] in ("public", "private", "protected"):
            head = []
        else:
            head.append((token, offset))
    if skipped:
        raise ValueError("braces do not match")


def functions_of(text):
    """(offset of the head, offset of the closing brace, tokens of the head) of every function, lambdas inside aside."""
    for found in declarations_of(text):
        if found.kind == "function":
            yield found.start, found.end, found.head


def name_in(head):
    """What to call the function: a test case by its text, others by the last word before their arguments."""
    if head[0].startswith("TEST_CASE"):
        return next((word for word in head if word.startswith('"')), head[0])
    if "operator" in head:
        at = head.index("operator") + 1
        return "operator" + "".join(head[at:head.index("(", at + (head[at] == "("))])
    calls = [before for before, word in zip(head, head[1:]) if word == "(" and re.match(r"\w", before)]
    return next((name for name in calls if name not in ("__launch_bounds__", "alignas", "decltype", "sizeof", "requires")), head[0])
