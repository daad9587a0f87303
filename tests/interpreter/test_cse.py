"""What is computed once gives what was written, and each thing is computed as often as it must be."""

import ast
import textwrap

import pytest

from ntops.interpreter import cse

PURE = {"pure", "other"}


def eliminated(source):
    tree = ast.parse(textwrap.dedent(source)).body[0]

    def named(names):
        return lambda node: isinstance(node, ast.Name) and node.id in names

    cse.eliminate(tree, named(PURE), named({"load"}), carried={"carried"})

    return ast.fix_missing_locations(tree)


def run(tree, *arguments):
    """What a function returns, and how often each function was called."""
    calls = []

    def recorded(name, function):
        def call(*args):
            calls.append(name)

            return function(*args)

        return call

    memory = {}
    functions = {
        "pure": recorded("pure", lambda *args: hash(("pure", *args))),
        "other": recorded("other", lambda *args: hash(("other", *args))),
        "load": recorded("load", lambda place: memory.get(place, 0)),
        "store": recorded("store", memory.__setitem__),
        "unknown": recorded("unknown", lambda *args: hash((calls.count("unknown"), *args))),
    }
    exec(compile(ast.Module([tree], []), "<test>", "exec"), functions)

    return functions[tree.name](*arguments), calls


def both(source, *arguments):
    """The result, which must not change, and the calls before and after."""
    plain = ast.parse(textwrap.dedent(source)).body[0]
    expected, before = run(plain, *arguments)
    result, after = run(eliminated(source), *arguments)
    assert result == expected
    assert [name for name in after if name not in PURE | {"load"}] == [
        name for name in before if name not in PURE | {"load"}
    ]

    return before, after


def test_repetitions():
    before, after = both(
        """
        def f(a, b):
            x = pure(a + b) * 2
            c = a
            return x + pure(c + b) + pure(a - b)
        """,
        3,
        4,
    )

    assert (len(before), len(after)) == (3, 2)


def test_a_name_with_a_new_value():
    _, after = both(
        """
        def f(a):
            x = pure(a)
            a += 1
            y = pure(a)
            a = a - 1
            return x, y, pure(a)
        """,
        3,
    )

    assert len(after) == 3


def test_branches_do_not_give_what_they_may_not_have_computed():
    for flag in (True, False):
        both(
            """
            def f(a, flag):
                if flag:
                    x = pure(a)
                else:
                    x = pure(a) + pure(a, a)
                y = pure(a, a) if flag else 0
                z = flag and pure(a, 7)
                return x, y, z, pure(a), pure(a, a), pure(a, 7)
            """,
            3,
            flag,
        )


def test_branches_use_what_was_computed_before():
    _, after = both(
        """
        def f(a, flag):
            x = pure(a)
            if flag:
                x += pure(a)
            return x + (pure(a) if flag else 0)
        """,
        3,
        True,
    )

    assert after == ["pure"]


def test_invariants_are_computed_before_the_loop():
    before, after = both(
        """
        def f(a, n):
            total = 0
            for k in range(n):
                total += pure(other(a)) + pure(k) + pure(a, total)
            return total
        """,
        3,
        5,
    )

    assert before.count("other") == 5
    assert after.count("other") == 1
    assert after.count("pure") == 11


def test_invariants_of_nested_loops_go_as_far_out_as_they_can():
    _, after = both(
        """
        def f(a, n):
            total = 0
            for i in range(n):
                for j in range(n):
                    total += pure(a) + other(i) + pure(i, j)
            return total
        """,
        3,
        4,
    )

    assert (after.count("other"), after.count("pure")) == (4, 17)


def test_nothing_is_moved_out_of_a_branch():
    _, after = both(
        """
        def f(a, n):
            total = 0
            for i in range(n):
                if i > 100:
                    total += pure(a)
                    for j in range(n):
                        total += other(a)
            return total
        """,
        3,
        4,
    )

    assert after == []


def test_loops_that_change_what_they_use():
    both(
        """
        def f(a, n):
            total = 0
            i = 0
            while i < n:
                b = a + i
                total += pure(b) + pure(a)
                if i == 2:
                    a = a + 1
                total += pure(a)
                i += 1
            return total, pure(a), pure(b)
        """,
        3,
        6,
    )


def test_a_name_that_the_next_round_reads():
    both(
        """
        def f(a, n):
            x = a
            total = 0
            for _ in range(n):
                total += pure(x)
                x = pure(a) + total
                total += pure(x)
            return total, x
        """,
        3,
        4,
    )


def test_loads_are_repeated_only_after_a_store():
    _, after = both(
        """
        def f(a):
            x = load(a) + load(a)
            store(a, 5)
            y = load(a) + load(a)
            unknown(a)
            return x, y, load(a)
        """,
        3,
    )

    assert after.count("load") == 3


def test_loads_stay_in_their_loop():
    both(
        """
        def f(a, n):
            total = 0
            for k in range(n):
                total += load(a)
                store(a, k)
            return total, load(a)
        """,
        3,
        4,
    )


def test_unknown_functions_are_called_as_written():
    before, after = both(
        """
        def f(a):
            return unknown(pure(a)) + unknown(pure(a)) + pure(unknown(a))
        """,
        3,
    )

    assert after.count("unknown") == before.count("unknown") == 3


def test_what_changes_by_subscript():
    both(
        """
        def f(a):
            values = [a, 1]
            x = values[0] + 1
            values[0] = 7
            y = values[0] + 1
            values.append(x)
            return x, y, values[0] + 1, values[-1] + 1
        """,
        3,
    )


def test_walrus_lambda_and_comprehension():
    both(
        """
        def f(a):
            x = pure(a)
            y = (a := a + 1) + pure(a)
            z = [pure(a) + i for i in range(3)]
            g = lambda a: pure(a)
            return x, y, z, g(2), pure(a)
        """,
        3,
    )


@pytest.mark.parametrize("values", [(1, 2, 4), (7, 3, 1), (0, 0, 0)])
def test_conjunctions(values):
    _, after = both(
        """
        def f(a, b, c):
            total = 0
            for k in range(3):
                total += k & pure(a) & b & k & pure(a) & (c & b)
            return total
        """,
        *values,
    )

    assert after.count("pure") == 1


def test_an_assignment_that_converts():
    tree = eliminated(
        """
        def f(a):
            carried = a
            x = carried + 1
            return x + (a + 1)
        """
    )

    assert "_value" not in ast.unparse(tree)


def test_temporaries_that_nobody_uses_are_gone():
    tree = eliminated(
        """
        def f(a, b):
            return pure(a) + pure(b) * (a + b)
        """
    )

    assert ast.unparse(tree) == "def f(a, b):\n    return pure(a) + pure(b) * (a + b)"
