"""Running the steps of a line on a stack of fractions."""

from fractions import Fraction

from sums.errors import SumError

FUNCTIONS = {"abs": abs, "min": min, "max": max}


def power(base, exponent):
    if exponent.denominator != 1 or abs(exponent) > 1000:
        raise SumError("bad exponent")
    if base == 0 and exponent < 0:
        raise SumError("division by zero")
    return base ** int(exponent)


def binary(operator, left, right):
    if operator == "/" and right == 0:
        raise SumError("division by zero")
    if operator == "^":
        return power(left, right)
    return {"+": left.__add__, "-": left.__sub__, "*": left.__mul__, "/": left.__truediv__}[operator](right)


def call(name, arguments):
    if name not in FUNCTIONS:
        raise SumError("unknown name")
    if not arguments or (name == "abs" and len(arguments) != 1):
        raise SumError("wrong number of arguments")
    return abs(arguments[0]) if name == "abs" else FUNCTIONS[name](arguments)


def run(steps, variables):
    stack = []
    for kind, *rest in steps:
        if kind == "number":
            stack.append(Fraction(rest[0]))
        elif kind == "name":
            if rest[0] not in variables:
                raise SumError("unknown name")
            stack.append(variables[rest[0]])
        elif kind == "sign":
            stack[-1] = -stack[-1] if rest[0] == "-" else stack[-1]
        elif kind == "binary":
            right, left = stack.pop(), stack.pop()
            stack.append(binary(rest[0], left, right))
        else:
            name, count = rest
            arguments = stack[len(stack) - count :]
            del stack[len(stack) - count :]
            stack.append(call(name, arguments))
    (value,) = stack
    return value
