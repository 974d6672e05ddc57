r"""Pairs (right answer, given answer) that the verifier of mathematics must accept, and such that it must reject.

`python -m tests.rewards.mathematics_table` prints the table of docs/pages/verifiers.md; with Math-Verify on the path,
also what that library says.
"""

ACCEPT = [
    ("18", "18"), ("18", "18.0"), ("18", "$18$"), ("18", r"\$18"), ("18", "18 dollars"), ("18", "x = 18"),
    ("18", r"\boxed{18}"), ("1080", "1,080"), ("1080", r"1,\!080"), ("1080", "1{,}080"), ("-3", "−3"),
    ("1/2", r"\frac{1}{2}"), (r"\frac12", "0.5"), ("0.5", r"\dfrac{1}{2}"), (r"\frac{1}{2}", ".5"), ("1/2", "2/4"),
    ("50\\%", "50"), ("50", "50 percent"), ("50\\%", "0.5"), ("0.5", "50%"), ("5/2", r"2\frac{1}{2}"), ("5/2", "2 1/2"),
    ("3e8".replace("e", "*10^"), r"3 \times 10^{8}"), ("2^{10}", "1024"), (r"\sqrt{8}", r"2\sqrt{2}"),
    (r"\frac{1}{\sqrt{2}}", r"\frac{\sqrt2}{2}"), (r"\frac{1}{1+\sqrt{2}}", r"\sqrt{2}-1"), (r"2\pi", "pi * 2"),
    (r"\sqrt[3]{16}", r"2\sqrt[3]{2}"), ("(1+i)^{20}", "-1024"),
    ("1+2i", "2i + 1"), (r"\sqrt{-4}", "2i"), ("x^2+2x+1", "(x+1)^2"),
    (r"\frac{x^2-1}{x-1}", "x+1"), ("(1,2)", r"\left( 1, 2 \right)"), ("(1/2, 3)", "(0.5, 3)"), ("1,2", "2, 1"),
    (r"\{1,2,3\}", "3, 1, 2"), ("1, -2", "1 and -2"), (r"\pm 2", "2, -2"),
    (r"3 \pm \sqrt{2}", r"3-\sqrt{2}, 3+\sqrt{2}"),
    ("(0,1]", r"\left(0,1\right]"), (r"(-\infty,2)\cup(3,\infty)", r"(3,\infty) \cup (-\infty, 2)"),
    ("90", r"90^\circ"), (r"90^\circ", "90 degrees"), (r"5\text{ cm}", "5"), (r"12\text{ cm}^2", "12 square cm"),
    (r"\text{Friday}", "friday"), ("C", "(C)"), (r"\text{(C)}", "C"), ("y = 2x+3", "2x + 3"), ("y=2x+3", "y = 3 + 2x"),
    ("x^2+y^2=4", "y^2 + x^2 - 4 = 0"), ("x \\ge 3", r"3 \leq x"), (r"\binom{5}{2}", "10"), ("5!", "120"),
    (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"\begin{pmatrix}1\\ 2.0\end{pmatrix}"), ("3:5", "3 : 5"),
    (r"25\pi\text{ cm}^2", r"25\pi"), (r"5\text{ g}", "5"), ("60", r"60\text{ km}/\text{h}"), (r"\$45", "45"),
    (r"\frac{\pi}{6}", r"\pi/6"), ("11011_2", "11011_{2}"), ("3x^2", "3 x x"), (r"x \in [0,1]", "[0, 1]"),
    # Units: what stands in \text{} goes whatever its length, a known unit and a word behind a blank go anywhere.
    ("5", r"5\text{ m}"), (r"5\text{ m}", "5"), ("5", r"5\text{ g}"), ("9.8", r"9.8\text{ m/s}^2"),
    ("5", r"5 \mathrm{L}"),
    (r"120\text{ m}^2", "120"), ("120", r"120\ \mathrm{m^2}"), ("12", r"12\ \mathrm{cm^{2}}"),
    ("10^3", r"10^3\text{ m}"),
    ("5", r"5\,\mathrm{kg}\cdot\mathrm{m}/\mathrm{s}^2"), (r"25\pi", r"25\pi\text{ cm}^2"),
    ("5x", r"5x\text{ dollars}"),
    (r"2\pi\text{ units}", r"2\pi"), (r"5\text{ m}", "5 m"), ("5", "5cm"), ("5", "5 gallons of water"), ("5", "5 boys"),
    ("60", "60 miles per hour"), ("75", r"75^\circ\text{C}"), (r"\$5", "5 dollars"), (r"\$12\text{ per hour}", r"\$12"),
    ("£5", "5 pounds"), ("5:30", r"5:30\text{ p.m.}"), ("5:30 PM", "5:30 p.m."), ("50", r"50\text{ percent}"),
    ("50\\%", r"50\text{ percent}"), ("50", "50 per cent"), ("320000", "3.2e5"), ("3.2e5", "320000"),
    ("0.045", "4.5e-2"),
    ("1,234", "1234"), ("-1,234.5", "-1234.5"), ("1, 2, 3", r"1, 2, \text{ and } 3"),
]  # fmt: skip
REJECT = [
    ("18", "81"), ("18", "-18"), ("18", "18.5"), ("18", "180"), ("18", ""), ("18", " "), ("18", "."), ("18", "nan"),
    ("18", "inf"), ("18", r"\infty"), ("18", r"-\infty"), ("18", "17, 18"), ("18", "18, 18"), ("18", "17 or 18"),
    ("18", "18 or not 18"), ("18", "not 18"), ("18", "18 false"), ("18", "18 negative"),
    ("18", "1,8"), ("18", "1 8"), ("18", r"\{17, 18\}"), ("18", "(0, 100)"),
    ("18", r"(-\infty, \infty)"), ("18", "[18, 18]"), ("18", "x"), ("18", "x = y"), ("18", "17 = 18"),
    ("18", "x=17=18"),
    ("18", "x > 17"), ("18", r"\ge 18"), ("18", r"18 \pm 1"), ("18", r"\approx 18"), ("18", "18 million"),
    ("18", "18 thousand"), ("18", "18 hundred"), ("18", "9+9"), ("18", "2*9"), ("18", r"\sqrt{324}"), ("18", "18 + 0"),
    ("18", "9^9^9^9"), ("18", "9^{9^{9^{9}}}"), ("18", "10^{1000000}"), ("18", "1000000!"), ("18", "((((((18"),
    ("18", "18}"), ("18", "{18"), ("18", "(" * 500 + "18" + ")" * 500), ("18", "18" + "0" * 5000),
    ("18", "__import__('os').system('true')"), ("18", "int('18')"), ("18", "lambda: 18"), ("18", "1８"), ("18", "١٨"),
    ("18", "𝟏𝟖"), ("18", "¹⁸"), ("18", "①⑧"), ("18", "18\u200b1"), ("18", "0x12"), ("18", "18/0"), ("18", "0/0"),
    ("6", "6 xyz"), (r"2n\text{ even}", r"2n\text{ odd}"),
    ("0", "0 or 1"), ("0", "1-1"), ("0", r"\infty - \infty"), ("1/3", "0.333333"), ("1/3", "0.33"),
    ("0.1", "0.1000004"),
    ("0.5", "5"), ("50\\%", "5000"), (r"\frac{1}{2004!}", r"\frac{1}{2006!}"),
    (r"\frac{1}{2^{99}}", r"\frac{1}{2^{98}}"),
    (r"1-\frac{1}{e}", r"1+\frac{1}{e}"), ("1, 2, ..., n", "1, 3, 5, ..., 2n-1"), ("1:2:3", "1:4:9"),
    (r"\sqrt{2}", "1.41421356"), (r"\pi", "3.14159265"), (r"\pi", "22/7"), ("6", "2x=6"), ("2,3,4", "1,2,3"),
    ("1,2", "1"), ("1,2", "1,2,3"), ("1,2", "1,2,2"), ("(1,2)", "(2,1)"), ("(1,2)", "[1,2]"), ("(0,1]", "[0,1)"),
    ("(0,1)", "0,1"), (r"(0,1)\cup(2,3)", "(0,3)"), (r"\pm 2021", "2021"), ("2021", r"\pm 2021"), ("x+1", "x-1"),
    ("x+1", "y+1"), ("x^2", r"x^3/|x|"), ("x", r"\sqrt{x^2}"), (r"\text{Friday}", "Saturday"),
    (r"\text{Friday}", "Friday or Saturday"), ("C", "B"), ("C", "ABCD"), ("C", "A, B, C, D"), ("y=2x", "x=2x"),
    (r"5\text{ cm}", r"5\text{ m}"), ("11011_2", "11011"), ("3:5", "5:3"), ("3:5", "0.6"), ("x \\ge 3", "x > 3"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}2\\1\end{pmatrix}"), ("1,234", "1234.5"), ("e", "2.71828"),
    # Letters behind a number are variables, words of scale and order change it.
    ("6xy", "6"), ("6", "6xy"), ("6xy", "6ab"), ("5", "5 xy"), ("3x^2yz", "3x^2"), ("2ab^2", "2ab^3"), ("2ab^2", "2"),
    ("3+2xy", "5"), ("2(a+b)xy", "2(a+b)"), ("5", "5 m"), ("5", "5m"), ("5", "5 abc"), ("5", "5 xyz"), ("5", "5 bn"),
    ("x^2", "x^2min"), (r"\frac{1}{2}", r"\frac{1}{2}ft"), ("3", r"3+2\mathrm{i}"), ("2", r"2\mathrm{e}"), ("5", "5 K"),
    ("5", r"5\text{ x}"), ("5", r"5\text{ab}"), ("2", r"2\text{k}"), ("6", r"6\mathbf{m}"), ("5", r"5\text{ M}"),
    ("6", "6 hundredths"), ("6", r"6\text{ hundredths}"), ("6", "6 tenths"), ("6", "6 tens"), ("6", "6 lakh"),
    ("6", "6 mil"),
    ("6", "6 crore"), ("6", "6 halves"), ("6", "6 thirds"), ("6", "6 sevenths"), ("6", "6 square"),
    ("6", "6 factorial"),
    ("6", "6 remainder"), ("1", "1st"), ("5", r"5\text{th}"), (r"\$45", r"45\text{ cents}"), ("$45", "45 cents"),
    (r"\$5", "€5"), ("5:30 AM", "5:30 PM"), (r"5:30\text{ a.m.}", r"5:30\text{ p.m.}"),
    (r"75^\circ\text{C}", r"75^\circ\text{F}"),
    (r"\triangle\text{ABC}", r"\triangle\text{DEF}"), ("5", "5 feet 6 inches"), ("6", r"5\text{ feet }6\text{ inches}"),
    ("5", r"5\text{ not apples}"), (r"10\text{ m}", r"10\text{ mm}"), ("5/2", "21/2"), (r"2 \frac12", "21/2"),
    ("1,234", "234, 1"), ("1,234", r"\{1,234\}"), ("2e3", "6"), ("18", "1\x018"),
]  # fmt: skip


def library_says(gold: str, given: str) -> str:
    """Math-Verify on the pair in boxes: "yes", "no", or the error's name."""
    import math_verify

    try:
        first, second = (math_verify.parse(rf"\boxed{{{text}}}") for text in (gold, given))
        return "yes" if math_verify.verify(first, second) else "no"
    except Exception as error:  # noqa: BLE001 - printed in the table
        return type(error).__name__


def main() -> None:
    from rl_jax.rewards.mathematics import equivalent

    for name, pairs in (("accept", ACCEPT), ("reject", REJECT)):
        print(f"\n| right | given | here ({name}) | Math-Verify |\n|---|---|---|---|")
        for gold, given in pairs:
            shown = [f"`{text[:60]}`".replace("|", "\\|") for text in (gold, given)]
            print("|", " | ".join([*shown, "yes" if equivalent(gold, given) else "no", library_says(gold, given)]), "|")


if __name__ == "__main__":
    main()
