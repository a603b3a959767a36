"""Tokens as a program for a stack machine, by precedence (shunting-yard): no recursion, so any nesting will do.

Steps are ("number", text), ("name", name), ("binary", operator), ("sign", operator) and ("call", name, argument count).
"""

from sums.errors import SumError

BINDING = {"+": 1, "-": 1, "*": 2, "/": 2, "sign": 3, "^": 4}


def parse(found):
    """The name to be set, or None, and the steps."""
    target = None
    if len(found) > 2 and found[0][0] == "name" and found[1] == ("operator", "="):
        target, found = found[0][1], found[2:]
    return target, steps(found)


def steps(found):
    program, waiting, counts = [], [], []
    operand_next = True

    def settle(binding):
        """Emit the waiting operators that bind at least as tightly."""
        while waiting and waiting[-1][0] in ("binary", "sign"):
            kind, operator = waiting[-1]
            if BINDING["sign" if kind == "sign" else operator] < binding:
                break
            program.append(waiting.pop())

    at = 0
    while True:
        kind, text = found[at]
        following = found[at + 1] if at + 1 < len(found) else None
        at += 1
        if operand_next:
            if kind == "number":
                program.append(("number", text))
                operand_next = False
            elif kind == "name" and following == ("operator", "("):
                waiting.append(("call", text))
                counts.append(1)
                at += 1
                if found[at] == ("operator", ")"):
                    counts[-1] = 0
                    operand_next = False
            elif kind == "name":
                program.append(("name", text))
                operand_next = False
            elif text == "(":
                waiting.append(("group", ""))
            elif kind == "operator" and text in "+-":
                waiting.append(("sign", text))
            else:
                raise SumError("syntax")
            continue
        if kind == "end":
            settle(0)
            if waiting:
                raise SumError("syntax")
            return program
        if kind != "operator" or text in "(=":
            raise SumError("syntax")
        if text in "),":
            settle(0)
            if not waiting or (text == "," and waiting[-1][0] != "call"):
                raise SumError("syntax")
            if text == ",":
                counts[-1] += 1
                operand_next = True
            else:
                opener, name = waiting.pop()
                if opener == "call":
                    program.append(("call", name, counts.pop()))
        else:
            settle(BINDING[text] + (1 if text == "^" else 0))
            waiting.append(("binary", text))
            operand_next = True
