"""The text of a Metal or CUDA kernel as C++ that clang compiles for a CPU."""

import re

from vqx_kernels.testing import toolchain
from vqx_kernels.testing.toolchain import Refused

ATTRIBUTES = {
    "thread_position_in_grid": "msl_u3(c->tpig)",
    "thread_position_in_threadgroup": "msl_u3(c->tpit)",
    "threadgroup_position_in_grid": "msl_u3(c->tgpig)",
    "threads_per_threadgroup": "msl_u3(c->tptg)",
    "dispatch_threads_per_threadgroup": "msl_u3(c->dtptg)",
    "threads_per_grid": "msl_u3(c->tpg)",
    "grid_size": "msl_u3(c->tpg)",
    "threadgroups_per_grid": "msl_u3(c->tgpg)",
    "grid_origin": "uint3{0, 0, 0}",
    "thread_index_in_threadgroup": "c->tid",
    "thread_index_in_simdgroup": "c->lane",
    "simdgroup_index_in_threadgroup": "c->sg",
    "simdgroups_per_threadgroup": "c->nsg",
    "dispatch_simdgroups_per_threadgroup": "c->nsg",
    "thread_execution_width": "32u",
    "threads_per_simdgroup": "32u",
    "thread_index_in_quadgroup": "c->lane & 3u",
    "quadgroup_index_in_threadgroup": "c->tid / 4u",
    "quadgroups_per_threadgroup": "(c->nsg * 8u)",
    "dispatch_quadgroups_per_threadgroup": "(c->nsg * 8u)",
}
"""How a thread learns what Metal tells it in attributes."""


def metal(name: str, text: str) -> str:
    """The C++ of a Metal kernel, with a way in."""
    signature = re.search(r"\[\[kernel\]\] void " + re.escape(name) + r"\(\n(.*?)\) \{\n", text, re.S)
    if signature is None:
        raise Refused(f"no kernel {name} in the text")
    passed = []
    for parameter in signature[1].split(",\n"):
        array = re.match(r"\s*(.*?)([*&]) (\w+) \[\[buffer\((\d+)\)\]\]$", parameter)
        attribute = re.match(r"\s*\w+ (\w+) \[\[\w+\]\]$", parameter)
        if array:
            passed.append(f"{'' if array[2] == '*' else '*'}({array[1]}*)bufs[{array[4]}]")
        elif attribute:
            passed.append(ATTRIBUTES[attribute[1]])
    instance = re.search(r"decltype\((" + re.escape(name) + r"(?:<.*>)?)\)", text)
    return (
        f'#include "mlx/backend/metal/kernels/utils.h"\n{_rewritten(preprocessed(text))}'
        '\n#line 1 "entry"\n'
        "static inline uint3 msl_u3(const uint32_t* p) { return uint3{p[0], p[1], p[2]}; }\n"
        f'extern "C" void msl_entry(void** bufs, const msl_tctx* c) {{ {instance[1] if instance else name}'
        f"({', '.join(passed)}); }}\n"
    )


def preprocessed(text: str) -> str:
    """With the kernel's own macros spelt out and its line numbers kept."""
    text = re.sub(r"^[ \t]*#[ \t]*include[ \t]*<\w+>.*$", "", text, flags=re.M)
    known = ("-D__METAL_VERSION__=310", "-D__METAL__=1")
    done = toolchain.clang("-E", "-C", "-undef", "-nostdinc", *known, text=f'#line 1 "kernel.metal"\n{text}')
    if done.returncode:
        raise Refused("the kernel does not preprocess:\n" + done.stderr[:3000])
    return re.sub(r"^# (\d+) (\"[^\"]*\").*$", r"#line \1 \2", done.stdout, flags=re.M)


def cuda(name: str, text: str) -> str:
    """The C++ of a CUDA kernel, with a way in."""
    signature = re.search(r"void " + re.escape(name) + r"\(\n(.*?)\) \{\n", text, re.S)
    if signature is None:
        raise Refused(f"no kernel {name} in the text")
    text = re.sub(r"^[ \t]*#[ \t]*include.*$", "", text, flags=re.M)
    text = text.replace("namespace cg = cooperative_groups;", "")
    done = toolchain.clang("-E", "-C", "-undef", "-nostdinc", text=f'#line 1 "kernel.metal"\n{text}')
    if done.returncode:
        raise Refused("the kernel does not preprocess:\n" + done.stderr[:3000])
    text = re.sub(r"^# (\d+) (\"[^\"]*\").*$", r"#line \1 \2", done.stdout, flags=re.M)
    shared = r"alignas(16) static \1\2\3; msl_tg_touch((void*)&\2, sizeof(\2));"
    text = re.sub(r"__shared__ ([^;\[]*?)(\w+)((?:\[[^;]*\])?);", shared, text)
    passed = []
    for number, parameter in enumerate(signature[1].split(",\n")):
        kind = parameter.strip().rpartition(" ")[0].replace("__grid_constant__ ", "")
        passed.append(f"({kind})bufs[{number}]" if kind.endswith("*") else f"*({kind}*)bufs[{number}]")
    way_in = f"mlx::core::cu::{name}({', '.join(passed)});"
    entry = f'extern "C" void msl_entry(void** bufs, const msl_tctx*) {{ {way_in} }}'
    return f'#include "cuda_shim.h"\n{text}\n{entry}\n'


TOKEN = re.compile(
    r"#[^\n]*|//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'"
    r"|\d[\w.]*(?:[eEpP][+-]?\w+)?|\.\d\w*|[A-Za-z_]\w*"
    r"|::|->|<<|>>|&&|\|\||[-+*/%&|^=<>!]=|\s+|.",
    re.S,
)


def tokens(s: str) -> list[str]:
    """The text in pieces, white space and comments among them."""
    return TOKEN.findall(s)


def is_ws(t: str) -> bool:
    """Whether a piece says nothing."""
    return t.isspace() or t.startswith("//") or t.startswith("/*") or t.startswith("#")


VEC = re.compile(r"(?:float|half|bfloat|int|uint|short|ushort|char|uchar|long|ulong|bool)[234]$")


def _rewritten(src: str) -> str:
    """Storage of a block as static arrays, vectors as calls, Metal's pragma as clang's."""
    src = re.sub(r"template \[\[host_name\(\"[^\"]*\"\)\]\] \[\[kernel\]\]", "template", src)
    src = re.sub(
        r"^([ \t]*)#pragma METAL fp contract\((\w+)\)", r"\1#pragma clang fp contract(\2)", src, flags=re.M
    )
    t = tokens(src)
    out = []
    i, n = 0, len(t)
    depth = 0
    paren = 0

    def nxt(j: int) -> int:
        while j < n and is_ws(t[j]):
            j += 1
        return j

    while i < n:
        tok = t[i]
        if tok == "{":
            depth += 1
        elif tok == "}":
            depth -= 1
        elif tok == "(":
            paren += 1
        elif tok == ")":
            paren -= 1
        if tok == "threadgroup" and depth > 0 and paren == 0:
            # a declaration of storage (no * or & before the name), or a pointer?
            j, ang, decl = nxt(i + 1), 0, True
            k = j
            while k < n and not (ang == 0 and t[k] in (";", "=", "[", "{", "(", ",")):
                ang += {"<": 1, ">": -1, ">>": -2}.get(t[k], 0)
                if ang == 0 and t[k] in ("*", "&"):
                    decl = False
                    break
                k += 1
            if decl and k < n and t[k] in ("[", ";", ","):
                # static storage, shared by the fibers of the group; poisoned per group
                ang, last, br = 0, "", 0
                names: list[str] = []
                m = j
                ang = 0
                while t[m] != ";":
                    if br == 0:
                        ang += {"<": 1, ">": -1, ">>": -2}.get(t[m], 0)
                    if ang > 0 or t[m] in (">", ">>"):
                        m += 1
                        continue
                    if br == 0 and re.match(r"[A-Za-z_]\w*$", t[m]):
                        last = t[m]
                    if t[m] == "[":
                        if br == 0 and last and (not names or names[-1] != last):
                            names.append(last)
                        br += 1
                    elif t[m] == "]":
                        br -= 1
                    elif br == 0 and t[m] == "," and last and (not names or names[-1] != last):
                        names.append(last)
                    m += 1
                if last and (not names or names[-1] != last):
                    names.append(last)
                out.append("alignas(16) static threadgroup " + "".join(x for x in t[j:m]) + ";")
                out.append("".join(f" msl_tg_touch((void*)&{x}, sizeof({x}));" for x in names))
                i = m + 1
                continue
        if VEC.match(tok):
            j = nxt(i + 1)
            p = i - 1
            while p >= 0 and is_ws(t[p]):
                p -= 1
            if j < n and t[j] == "(" and not (p >= 0 and t[p] in ("typedef", "using", "operator")):
                out.append(f"msl_mk<{tok}>")
                i += 1
                continue
        out.append(tok)
        i += 1
    return "".join(out)
