"""What Apple's compiler refuses and clang lets pass, and clang's own word on address spaces."""

import re

from vqx_kernels.testing import rewrite, toolchain
from vqx_kernels.testing.rewrite import is_ws, tokens

STRICT = (
    "-std=c++14", "-DMSL_STRICT", "-ffreestanding", "-fno-exceptions", "-fno-rtti", "-ffp-contract=off",
    "-Wno-unknown-attributes", "-Wno-user-defined-literals", "-Wno-vla-cxx-extension",
    "-D__METAL_VERSION__=310",
    "-Werror=double-promotion", "-Werror=implicit-float-conversion", "-Werror=vla-extension",
    "-Werror=c++17-extensions", "-Werror=c++20-extensions",
)  # fmt: skip


def refused(name: str, text: str) -> list[str]:
    """What is wrong with a Metal kernel's text: address spaces as distinct types, rules of the language."""
    unit = rewrite.metal(name, text)
    done = toolchain.clang("-fsyntax-only", *STRICT, *toolchain.includes(), text=unit)
    said = [line for line in done.stderr.splitlines() if "error" in line]
    return said + complaints(rewrite.preprocessed(text))


KEYWORDS = {
    "double": "no double in MSL",
    "goto": "no goto in MSL",
    "throw": "no exceptions in MSL",
    "try": "no exceptions in MSL",
    "catch": "no exceptions in MSL",
    "dynamic_cast": "no RTTI in MSL",
    "typeid": "no RTTI in MSL",
    "virtual": "no virtual functions in MSL",
    "new": "no new/delete in MSL",
    "delete": "no new/delete in MSL",
    "thread_local": "no thread_local in MSL",
    "register": "no register in MSL",
    "asm": "no asm in MSL",
    "std": "no std:: in MSL",
}
SPACES = {"device", "constant", "threadgroup", "thread", "ray_data", "object_data", "threadgroup_imageblock"}
TYPES = {
    "float",
    "half",
    "bfloat",
    "int",
    "uint",
    "short",
    "ushort",
    "char",
    "uchar",
    "long",
    "ulong",
    "bool",
    "void",
    "auto",
    "float16_t",
    "bfloat16_t",
    "size_t",
    *(f"{u}int{b}_t" for u in ("", "u") for b in (8, 16, 32, 64)),
    *(f"{x}{k}" for x in ("float", "half", "int", "uint") for k in (2, 3, 4)),
}


def complaints(src: str) -> list[str]:
    """Things that Apple's compiler rejects (or that mean something else) and clang lets pass."""
    msgs: list[str] = []
    t = tokens(src)
    types = TYPES
    line = 1
    sig = [(i, x) for i, x in enumerate(t) if not is_ws(x)]
    pos: dict[int, int] = {}
    for i, x in enumerate(t):
        m = re.match(r"#line (\d+)", x)
        if m:
            line = int(m[1]) - 1
        pos[i] = line
        line += x.count("\n")
    for k, (i, x) in enumerate(sig):
        p = sig[k - 1][1] if k else ""
        q = sig[k + 1][1] if k + 1 < len(sig) else ""
        if (
            x in KEYWORDS
            and p not in (".", "->")
            and not (x == "std" and q != "::")
            and not (x == "delete" and p == "=")
        ):
            msgs.append(f"{pos[i]}: {KEYWORDS[x]} ('{x}')")
        if (
            re.match(r"(\d+\.\d*|\.\d+|\d+)([eE][+-]?\d+)?$", x)
            and ("." in x or "e" in x.lower())
            and not x.lower().startswith("0x")
        ):
            msgs.append(f"{pos[i]}: literal {x} without f: single in Metal, double in CUDA and C++")
        if (
            x == "["
            and q in ("&", "=", "]")
            and p in ("=", "(", ",", "return", ";", "{")
            and not (k + 2 < len(sig) and sig[k + 1][1] == "[")
        ):
            msgs.append(
                f"{pos[i]}: lambda: not in MSL before 3.2-era compilers, keep out of portable kernels"
            )
        # a pointer or reference to a known type must name its address space
        if x in ("*", "&") and p in types and p != "auto":
            # (T*) or T* name or T& name: look back for a space qualifier in this declaration
            j = k - 1
            seen = False
            while j >= 0 and sig[j][1] not in (";", "{", "}", "(", ",", "<"):
                if sig[j][1] in SPACES:
                    seen = True
                j -= 1
            j2 = k + 1
            if sig[j2][1] in SPACES:  # east style: float device* p is matched before; float* thread p
                seen = True
            nxt_ok = q == ")" or re.match(r"[A-Za-z_]", q) or q in (">", ",", "&", "*", "[")
            prev = sig[k - 2][1] if k >= 2 else ""
            decl = (
                prev in (";", "{", "}", "(", ",", "<", "const", "inline", "static", "constexpr", "")
                or prev in SPACES
            )
            if not seen and nxt_ok and decl:
                msgs.append(
                    f"{pos[i]}: {p}{x} without an address space (device, constant, threadgroup or thread)"
                )
    msgs += _globals(sig, pos)
    return msgs


def _globals(sig: list[tuple[int, str]], pos: dict[int, int]) -> list[str]:
    """Depth-0 declarations, static locals, threadgroup storage outside the kernel function, recursion."""
    msgs: list[str] = []
    depth, paren, fn, kern = 0, 0, "", False
    stmt: list[str] = []
    for k, (i, x) in enumerate(sig):
        if depth == 0:
            stmt.append(x)
        if x == "(":
            paren += 1
            if depth == 0 and paren == 1 and len(stmt) > 1 and re.match(r"[A-Za-z_]", stmt[-2]):
                fn = stmt[-2]
                kern = kern or "kernel" in stmt
        elif x == ")":
            paren -= 1
        elif x == "{":
            if depth == 0:
                kern = "kernel" in stmt
                if stmt and stmt[0] in ("struct", "class", "enum", "namespace", "union"):
                    fn = ""
            depth += 1
        elif x == "}":
            depth -= 1
            if depth == 0:
                stmt, fn = [], ""
        elif x == ";" and depth == 0 and paren == 0:
            if (
                stmt
                and stmt[0]
                not in (
                    ";",
                    "typedef",
                    "using",
                    "struct",
                    "class",
                    "enum",
                    "template",
                    "namespace",
                    "static_assert",
                    "union",
                    "friend",
                )
                and "constant" not in stmt
                and "(" not in stmt
            ):
                msgs.append(f"{pos[i]}: a variable at file scope must be constant")
            stmt = []
        if depth > 0 and x == "static" and fn:
            nxt = [y for _, y in sig[k + 1 : k + 8]]
            if not ("constexpr" in nxt or "constant" in nxt):
                msgs.append(f"{pos[i]}: static local variable")
        if depth > 0 and x == "threadgroup" and fn and not kern and paren == 0:
            j = k + 1
            while j < len(sig) and sig[j][1] not in (";", "=", "*", "&", "(", ")"):
                j += 1
            if sig[j][1] in (";", "="):
                msgs.append(f"{pos[i]}: threadgroup storage outside a kernel function (in {fn})")
        if depth > 0 and fn and x == fn and k + 1 < len(sig) and sig[k + 1][1] == "(":
            msgs.append(f"{pos[i]}: {fn} calls itself")
    return msgs
