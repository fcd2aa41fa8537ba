"""The machine code in object files that nvcc made, for sass_check and machine_code: which kernels there are, their
instructions, loops, registers and memory, and how many of their blocks fit on a multiprocessor."""
import collections
import math
import os
import pathlib
import re
import shutil
import subprocess
import sys

NOTHING_CHECKED = 77  # the exit status where there is no cuobjdump


def find_cuobjdump(directory=None):
    """In PATH, in the toolkit, or in a directory, where NVIDIA's wheels are put if it is nowhere; else None."""
    def find():
        places = [shutil.which("cuobjdump"), "/usr/local/cuda/bin/cuobjdump"]
        if directory:
            places += sorted(map(str, pathlib.Path(directory).glob("**/bin/cuobjdump")))
        return next((place for place in places if place and pathlib.Path(place).is_file()), None)

    if not find() and directory:
        for step in ([sys.executable, "-m", "venv", directory],
                     [f"{directory}/bin/python", "-m", "pip", "install", "--quiet", "nvidia-cuda-cuobjdump",
                      "nvidia-cuda-nvdisasm"]):
            if subprocess.run(step, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode != 0:
                break
    found = find()
    if not found:
        print("cuobjdump is not in PATH nor in the toolkit, and could not be fetched (pip install nvidia-cuda-cuobjdump "
              "nvidia-cuda-nvdisasm): machine code is NOT checked", file=sys.stderr)
    return found


def demangle(names):
    text = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True).stdout
    return [line.replace(" ", "") for line in text.splitlines()]


# Shared memory, warps and blocks of a multiprocessor: CUDA Programming Guide, "Technical Specifications per Compute
# Capability", and arch_traits.h of NVIDIA's CCCL.
LIMITS = {80: (164 * 1024, 64, 32), 86: (100 * 1024, 48, 16), 89: (100 * 1024, 48, 24), 90: (228 * 1024, 64, 32),
          120: (100 * 1024, 48, 24)}
SYSTEM_SHARED = 1024  # of each block, from sm_80 on


def round_up(value, multiple):
    return -(-value // multiple) * multiple


class Kernel:
    def __init__(self, architecture):
        self.architecture = architecture
        self.sm = int(re.search(r"\d+", architecture)[0])
        self.instructions = []  # names alone
        self.code = []          # address, text
        self.usage = {}
        self.bounds = None      # threads of a block at most, by __launch_bounds__

    def shared_bytes(self):
        """What the kernel itself takes: from sm_90 on the figure has the system's bytes in it."""
        return max(0, self.usage["SHARED"] - (SYSTEM_SHARED if self.sm >= 90 else 0))

    def local_bytes(self):
        return self.usage["STACK"] + self.usage["LOCAL"]

    def blocks(self, threads, dynamic):
        """How many blocks fit on a multiprocessor, as the toolkit's cuda_occupancy.h has it: a warp's registers come in
        portions of 256 out of those of its quarter, shared memory in portions of 128 bytes."""
        shared, warps, blocks = LIMITS[self.sm]
        block_warps = -(-threads // 32)
        block_shared = round_up(self.shared_bytes() + dynamic + SYSTEM_SHARED, 128)
        fitting_warps = 4 * (65536 // 4 // round_up(32 * max(1, self.usage["REG"]), 256))
        return min(blocks, warps // block_warps, fitting_warps // block_warps, shared // block_shared)

    def loops(self):
        """First and last instruction of each loop, inner ones first. A backward branch ends one, unless code between
        leaves the kernel or it goes into the middle of another loop: then it comes back from code out of line."""
        index = {address: i for i, (address, _) in enumerate(self.code)}
        ends = {}
        for i, (_, text) in enumerate(self.code):
            target = re.search(r"\bBRA\S*\s.*?\b0x([0-9a-f]+)", text)
            first = index.get(int(target[1], 16), i) if target else i
            leaves = any(re.match(r"(EXIT|RET)\b", line) for _, line in self.code[first:i])
            if first < i and not leaves and not any(start < first <= end for start, end in ends.items()):
                ends[first] = i
        return sorted(ends.items(), key=lambda loop: loop[1] - loop[0])

    def hot_loop(self, word):
        """The instructions of the innermost loop with most of an instruction, or None where no loop has it."""
        loops = self.loops()
        held = collections.Counter()
        for i in (i for i, op in enumerate(self.instructions) if is_one(op, word)):
            held[next((loop for loop in loops if loop[0] <= i <= loop[1]), None)] += 1
        held.pop(None, None)
        first, last = max(held, key=lambda loop: (held[loop], loop[1] - loop[0]), default=(0, -1))
        return self.instructions[first:last + 1] or None


def read_object(cuobjdump, path, want_bounds):
    """The kernels of an object file, by (architecture, mangled name)."""
    tools = {"PATH": f"{pathlib.Path(cuobjdump).parent}:{os.environ.get('PATH', '')}"}  # it calls nvdisasm

    def run(option):
        done = subprocess.run([cuobjdump, option, str(path)], capture_output=True, text=True, env={**os.environ, **tools})
        if done.returncode != 0:
            sys.exit(f"{cuobjdump} {option} {path}: {done.stderr.strip()}")
        return done.stdout

    kernels = {}
    architecture, kernel = "", None
    for line in run("--dump-sass").splitlines():
        if match := re.search(r"(?:code for|arch =) (sm_\w+)", line):
            architecture = match[1]
        elif match := re.search(r"Function : (\S+)", line):
            kernel = kernels[architecture, match[1]] = Kernel(architecture)
        # "@!PT" never runs: padding
        elif (match := re.match(r"\s+/\*([0-9a-f]{4,})\*/\s+(.*?);", line)) and "@!PT" not in match[2]:
            kernel.code.append((int(match[1], 16), match[2]))
            kernel.instructions.append(re.sub(r"^@\S+\s+", "", match[2]).split()[0])
    architecture, name = "", ""
    for line in run("--dump-resource-usage").splitlines():
        if match := re.search(r"arch = (sm_\w+)", line):
            architecture = match[1]
        elif match := re.match(r"\s*Function (\S+?):\s*$", line):
            name = match[1]
        elif "REG:" in line and (architecture, name) in kernels:
            kernels[architecture, name].usage = {k: int(v) for k, v in re.findall(r"(\w+):(\d+)", line)}
    if want_bounds:
        read_bounds(run("--dump-elf"), kernels)
    return kernels


def read_bounds(text, kernels):
    """Enters __launch_bounds__ from a dump of the ELF files."""
    architecture, name, attribute = "", "", ""
    for line in text.splitlines():
        if match := re.match(r"arch = (sm_\w+)", line):
            architecture = match[1]
        elif match := re.match(r"\.nv\.info\.(\S+)", line):
            name = match[1]
        elif match := re.match(r"\s+Attribute:\s+(\w+)", line):
            attribute = match[1]
        elif attribute == "EIATTR_MAX_THREADS" and (match := re.match(r"\s+Value:\s+(\S+) (\S+) (\S+)", line)):
            kernels[architecture, name].bounds = math.prod(int(size, 16) for size in match.groups())


def is_one(instruction, word):
    exact, word = word.endswith("$"), word.rstrip("$")
    return instruction == word or (not exact and instruction.startswith(word + "."))


def count(instructions, word):
    return sum(is_one(instruction, word) for instruction in instructions)
