"""The library of CUDA: how it is built, what leaves it, what it says where there is no driver, no cuDNN, no library."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import cbuild
import pytest
from test_packaging import compiled, setup_py

import gossipgrad as gg
from gossipgrad import _build, _core
from gossipgrad.launch import cuda_build, environment

pytestmark = pytest.mark.full

ROOT = Path(__file__).resolve().parent.parent
CUDA = ROOT / "csrc" / "cuda"
built = pytest.mark.skipif(not _build.CUDA_VERSION, reason="built without CUDA")


def library() -> Path:
    return Path(_core.__file__).parent / "_cuda.so"


def asked(**variables: str) -> tuple[int, str, str]:
    """_core.cuda() of a fresh process."""
    code = "import json, gossipgrad; from gossipgrad import _core; print(json.dumps(_core.cuda()))"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **variables}, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    return tuple(json.loads(done.stdout))


def test_it_is_there_if_it_was_built():
    assert library().exists() == bool(_build.CUDA_VERSION)


@built
def test_one_symbol_leaves_it():
    listing = subprocess.run(
        ["nm", "-D", "--defined-only", str(library())], check=True, capture_output=True, text=True
    ).stdout
    assert {line.split()[-1] for line in listing.splitlines()} == {"gg_backend_library_open"}
    dynamic = subprocess.run(["readelf", "-d", str(library())], check=True, capture_output=True, text=True).stdout
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic)
    assert not [n for n in needed if re.match(r"lib(cuda|cudnn|cublas|nv|stdc)", n)], needed
    assert "$ORIGIN/../nvidia/cudnn/lib" in dynamic and "(RPATH)" not in dynamic


@built
def test_global_symbols_have_the_prefix():
    from test_layering import foreign_symbols

    objects = sorted((ROOT / _build.OBJECTS / "cuda").rglob("*.o"))
    listing = subprocess.run(
        ["nm", "-A", "-g", "--defined-only", *map(str, objects)], check=True, capture_output=True, text=True
    ).stdout
    own = [line for line in foreign_symbols(listing) if not re.search(r" [VWwvu] ", line)]
    # nvcc gives kernels mangled names; they and the code for them stay inside.
    assert not [line for line in own if " _Z" not in line and "__" not in line.split()[-1]], "\n".join(own)


# Registers of a thread: with 64 four blocks of 256 threads run on a multiprocessor at once. Kernels that may have more,
# by a part of their names: the sums of tensor cores stay in registers.
MAX_REGISTERS = 64
MORE_REGISTERS = {"rows_kernel": 80, "conv_tiled": 128, "conv_gradient": 128, "lstm_step": 128}


def usage_of_kernels(text: str) -> list[tuple[str, int, int, int]]:
    """From the output of ptxas -v: name and architecture, bytes of stack, bytes of spills, registers."""
    entries = text.split("Compiling entry function ")[1:]
    found = []
    for entry in entries:
        name, arch = re.match(r"'(\S+)' for '(\S+)'", entry).groups()
        stack, stores, loads = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+)", entry).groups()
        registers = re.search(r"Used (\d+) registers", entry).group(1)
        found.append((f"{name} {arch}", int(stack), int(stores) + int(loads), int(registers)))
    return found


def wasteful(kernels: list[tuple[str, int, int, int]]) -> list[tuple[str, int, int, int]]:
    return [
        kernel
        for kernel in kernels
        if kernel[1]
        or kernel[2]
        or kernel[3] > max([MAX_REGISTERS, *(n for part, n in MORE_REGISTERS.items() if part in kernel[0])])
    ]


@built
@pytest.mark.parametrize("path", sorted(CUDA.rglob("*.cu")), ids=lambda p: p.name)
def test_kernels_do_not_spill(path):
    """Of every kernel, for every architecture: no stack, no spills, and no more registers than its limit."""
    usage = ROOT / _build.OBJECTS / path.relative_to(ROOT / "csrc").with_suffix(".cu.o.usage")
    kernels = usage_of_kernels(usage.read_text())
    assert bool(kernels) == bool(re.search("GG_LAUNCH|gg_each", path.read_text())), usage
    assert not wasteful(kernels)


def test_spills_are_seen():
    text = """ptxas info    : Compiling entry function '_Z4fineif' for 'sm_80'
ptxas info    : Function properties for _Z4fineif
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 64 registers, used 0 barriers
ptxas info    : Compiling entry function '_Z5otherif' for 'sm_90a'
ptxas info    : Function properties for _Z5otherif
    {} bytes stack frame, {} bytes spill stores, {} bytes spill loads
ptxas info    : Used {} registers, used 0 barriers
"""
    assert wasteful(usage_of_kernels(text.format(0, 0, 0, 64))) == []
    for numbers in [(8, 0, 0, 64), (0, 4, 0, 64), (0, 0, 4, 64), (0, 0, 0, 65)]:
        assert [kernel[0] for kernel in wasteful(usage_of_kernels(text.format(*numbers)))] == ["_Z5otherif sm_90a"]


def has_driver() -> bool:
    return any(Path(p).exists() for p in ("/dev/nvidiactl", "/dev/dxg"))


@built
@pytest.mark.skipif(has_driver(), reason="there is a driver here")
def test_no_driver():
    count, why, lines = asked(GOSSIPGRAD_CUDA_PATH="", CUDA_HOME="/nowhere")
    assert count == 0 and "no NVIDIA driver" in why and "580" in why
    assert f"runtime: CUDA {_build.CUDA_VERSION}\n" in lines and "driver: none\n" in lines


@built
def test_no_cudnn(tmp_path):
    """What is missing, and how it is installed."""
    try:
        environment.find_cuda_wheels()
        found = bool(os.environ.get("GOSSIPGRAD_CUDA_PATH"))
    finally:
        os.environ.pop("GOSSIPGRAD_CUDA_PATH", None)
    if found or shutil.which("ldconfig") is None:
        pytest.skip("there is a cuDNN here")
    _, _, lines = asked(GOSSIPGRAD_CUDA_PATH=str(tmp_path), CUDA_HOME="/nowhere")
    if "cudnn: " in lines:
        pytest.skip("there is a cuDNN here")
    assert "libraries: " in lines and "pip install 'gossipgrad[cuda]'" in lines and "GOSSIPGRAD_CUDA_PATH" in lines


FAKE = """
#include <stddef.h>
size_t %(prefix)sGetVersion(void) { return %(version)d; }
"""


def fake(folder: Path, file: str, prefix: str, version: int, functions: list[str]) -> None:
    text = FAKE % {"prefix": prefix, "version": version}
    text += "".join(f"void {f}(void); void {f}(void) {{}}\n" for f in functions if f != f"{prefix}GetVersion")
    source = folder / f"{prefix}.c"
    source.write_text(text)
    subprocess.run(["gcc", "-shared", "-fPIC", str(source), "-o", str(folder / file)], check=True)


def functions_of(name: str) -> list[str]:
    header = (CUDA / "cuda_api.h").read_text()
    part = header.split(f"#define GG_{name}_FUNCTIONS(F)")[1].split("\n\n")[0]
    return re.findall(r"F\([\w ]+\*?,\s*(\w+),", part.replace("\\\n", " "))


@built
def test_wrong_libraries(tmp_path):
    """One that lacks a function, and versions that are too old or too new."""
    blas, dnn = functions_of("CUBLAS"), functions_of("CUDNN") + functions_of("CUDNN_RNN")
    assert len(blas) > 10 and len(dnn) > 20 and "cudnnConvolutionForward" in dnn
    elsewhere = {"GOSSIPGRAD_CUDA_PATH": f"/nowhere:{tmp_path}"}
    fake(tmp_path, "libcublasLt.so.13", "cublasLt", 120_900, blas)
    assert "version is 120900; 13.x is needed" in asked(**elsewhere)[2]
    fake(tmp_path, "libcublasLt.so.13", "cublasLt", 130_100, [f for f in blas if f != "cublasLtMatmul"])
    assert "has no function cublasLtMatmul: pip install" in asked(**elsewhere)[2]
    fake(tmp_path, "libcublasLt.so.13", "cublasLt", 130_100, blas)
    fake(tmp_path, "libcudnn.so.9", "cudnn", 100_000, dnn)
    assert "version is 100000; 9.x is needed" in asked(**elsewhere)[2]
    fake(tmp_path, "libcudnn.so.9", "cudnn", 91_900, dnn)
    lines = asked(**elsewhere)[2]
    assert "cudnn: 9.19.0\n" in lines and "cublaslt: 13.1.0\n" in lines


NUMBERS = """
#include <cuda_runtime_api.h>
#include <cublasLt.h>
#include <cudnn.h>
#include "cuda/cuda_api.h"
#define SAME(a, b) _Static_assert((int)(a) == (int)(b), #a)
#define AS_LARGE(a, b) _Static_assert(sizeof(a) == sizeof(b), #a)
SAME(GG_CUDA_ERROR_MEMORY_ALLOCATION, cudaErrorMemoryAllocation);
SAME(GG_CUDA_ERROR_STUB_LIBRARY, cudaErrorStubLibrary);
SAME(GG_CUDA_ERROR_INSUFFICIENT_DRIVER, cudaErrorInsufficientDriver);
SAME(GG_CUDA_ERROR_NO_DEVICE, cudaErrorNoDevice);
SAME(GG_CUDA_ERROR_NO_KERNEL_IMAGE, cudaErrorNoKernelImageForDevice);
SAME(GG_CUDA_ERROR_NOT_READY, cudaErrorNotReady);
SAME(GG_CUDA_ERROR_ALREADY_REGISTERED, cudaErrorHostMemoryAlreadyRegistered);
SAME(GG_CUDA_HOST_PORTABLE, cudaHostAllocPortable);
SAME(GG_CUDA_HOST_PORTABLE, cudaHostRegisterPortable);
SAME(GG_CUDA_HOST_MAPPED, cudaHostAllocMapped);
SAME(GG_CUDA_HOST_MAPPED, cudaHostRegisterMapped);
SAME(GG_CUDA_STREAM_NON_BLOCKING, cudaStreamNonBlocking);
SAME(GG_CUDA_CAPTURE_THREAD_LOCAL, cudaStreamCaptureModeThreadLocal);
SAME(GG_CUDA_ERROR_CAPTURE_UNSUPPORTED, cudaErrorStreamCaptureUnsupported);
SAME(GG_CUDA_ERROR_CAPTURE_INVALIDATED, cudaErrorStreamCaptureInvalidated);
SAME(GG_CUDA_EVENT_DISABLE_TIMING, cudaEventDisableTiming);
SAME(GG_CUDA_MEMCPY_DEFAULT, cudaMemcpyDefault);
SAME(GG_CUDA_ATTRIBUTE_PROCESSORS, cudaDevAttrMultiProcessorCount);
SAME(GG_CUDA_ATTRIBUTE_UNIFIED_ADDRESSING, cudaDevAttrUnifiedAddressing);
SAME(GG_CUDA_ATTRIBUTE_MAJOR, cudaDevAttrComputeCapabilityMajor);
SAME(GG_CUDA_ATTRIBUTE_MINOR, cudaDevAttrComputeCapabilityMinor);
SAME(GG_CUDA_ATTRIBUTE_HOST_POINTER, cudaDevAttrCanUseHostPointerForRegisteredMem);
SAME(GG_CUDNN_TENSOR_NCHW, CUDNN_TENSOR_NCHW);
SAME(GG_CUDNN_TENSOR_NHWC, CUDNN_TENSOR_NHWC);
SAME(GG_CUDNN_DATA_FLOAT, CUDNN_DATA_FLOAT);
SAME(GG_CUDNN_DATA_BFLOAT16, CUDNN_DATA_BFLOAT16);
SAME(GG_CUDNN_DEFAULT_MATH, CUDNN_DEFAULT_MATH);
SAME(GG_CUDNN_TENSOR_OP_MATH, CUDNN_TENSOR_OP_MATH);
SAME(GG_CUDNN_FMA_MATH, CUDNN_FMA_MATH);
SAME(GG_CUDNN_CROSS_CORRELATION, CUDNN_CROSS_CORRELATION);
SAME(GG_CUDNN_DETERMINISTIC, CUDNN_DETERMINISTIC);
SAME(GG_CUDNN_BAD_PARAM, CUDNN_STATUS_BAD_PARAM);
SAME(GG_CUDNN_MIN_REFUSAL, CUDNN_STATUS_NOT_SUPPORTED);
SAME(GG_CUDNN_MIN_BROKEN, CUDNN_STATUS_NOT_SUPPORTED_INCOMPATIBLE_CUDA_DRIVER);
SAME(GG_CUDNN_MAX_BROKEN, CUDNN_STATUS_NOT_SUPPORTED_SUBLIBRARY_UNAVAILABLE);
SAME(GG_CUDNN_NO_HOST_MEMORY, CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED);
SAME(GG_CUDNN_NO_DEVICE_MEMORY, CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED);
SAME(GG_CUBLAS_NO_MEMORY, CUBLAS_STATUS_ALLOC_FAILED);
SAME(GG_CUBLAS_NOT_SUPPORTED, CUBLAS_STATUS_NOT_SUPPORTED);
SAME(GG_CUDNN_MAX_REFUSAL + 1, CUDNN_STATUS_INTERNAL_ERROR);
SAME(GG_CUDNN_RNN_STANDARD, CUDNN_RNN_ALGO_STANDARD);
SAME(GG_CUDNN_RNN_LSTM, CUDNN_LSTM);
SAME(GG_CUDNN_RNN_NO_BIAS, CUDNN_RNN_NO_BIAS);
SAME(GG_CUDNN_RNN_INPUT_BIAS, CUDNN_RNN_SINGLE_INP_BIAS);
SAME(GG_CUDNN_RNN_ONE_WAY, CUDNN_UNIDIRECTIONAL);
SAME(GG_CUDNN_RNN_LINEAR_INPUT, CUDNN_LINEAR_INPUT);
SAME(GG_CUDNN_RNN_BATCH_MAJOR, CUDNN_RNN_DATA_LAYOUT_BATCH_MAJOR_UNPACKED);
SAME(GG_CUDNN_RNN_PADDED, CUDNN_RNN_PADDED_IO_ENABLED);
SAME(GG_CUDNN_RNN_INFERENCE, CUDNN_FWD_MODE_INFERENCE);
SAME(GG_CUDNN_RNN_TRAINING, CUDNN_FWD_MODE_TRAINING);
SAME(GG_CUDNN_RNN_ADD, CUDNN_WGRAD_MODE_ADD);
SAME(GG_CUDNN_ACTIVATION_RELU, CUDNN_ACTIVATION_RELU);
SAME(GG_CUDNN_ACTIVATION_IDENTITY, CUDNN_ACTIVATION_IDENTITY);
SAME(GG_CUDNN_NOT_PROPAGATE_NAN, CUDNN_NOT_PROPAGATE_NAN);
AS_LARGE(gg_cudnn_algorithm, cudnnConvolutionFwdAlgoPerf_t);
AS_LARGE(gg_cudnn_algorithm, cudnnConvolutionBwdDataAlgoPerf_t);
AS_LARGE(gg_cudnn_algorithm, cudnnConvolutionBwdFilterAlgoPerf_t);
SAME(offsetof(gg_cudnn_algorithm, memory), offsetof(cudnnConvolutionFwdAlgoPerf_t, memory));
SAME(offsetof(gg_cudnn_algorithm, determinism), offsetof(cudnnConvolutionFwdAlgoPerf_t, determinism));
SAME(GG_CUBLAS_R_32F, CUDA_R_32F);
SAME(GG_CUBLAS_R_16BF, CUDA_R_16BF);
SAME(GG_CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_32F);
SAME(GG_CUBLAS_COMPUTE_32F_PEDANTIC, CUBLAS_COMPUTE_32F_PEDANTIC);
SAME(GG_CUBLAS_COMPUTE_32F_FAST_TF32, CUBLAS_COMPUTE_32F_FAST_TF32);
SAME(GG_CUBLAS_OP_N, CUBLAS_OP_N);
SAME(GG_CUBLAS_OP_T, CUBLAS_OP_T);
SAME(GG_CUBLAS_DESC_TRANSA, CUBLASLT_MATMUL_DESC_TRANSA);
SAME(GG_CUBLAS_DESC_TRANSB, CUBLASLT_MATMUL_DESC_TRANSB);
SAME(GG_CUBLAS_DESC_EPILOGUE, CUBLASLT_MATMUL_DESC_EPILOGUE);
SAME(GG_CUBLAS_DESC_BIAS_POINTER, CUBLASLT_MATMUL_DESC_BIAS_POINTER);
SAME(GG_CUBLAS_EPILOGUE_DEFAULT, CUBLASLT_EPILOGUE_DEFAULT);
SAME(GG_CUBLAS_EPILOGUE_RELU, CUBLASLT_EPILOGUE_RELU);
SAME(GG_CUBLAS_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_BIAS);
SAME(GG_CUBLAS_EPILOGUE_RELU_BIAS, CUBLASLT_EPILOGUE_RELU_BIAS);
SAME(GG_CUBLAS_LAYOUT_BATCH_COUNT, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT);
SAME(GG_CUBLAS_LAYOUT_BATCH_STRIDE, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET);
SAME(GG_CUBLAS_PREFERENCE_WORKSPACE, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES);
SAME(GG_CUBLAS_PREFERENCE_REDUCTION, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK);
SAME(GG_CUBLAS_PREFERENCE_ALIGNMENT_A, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES);
SAME(GG_CUBLAS_PREFERENCE_ALIGNMENT_A + 3, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES);
SAME(GG_CUBLAS_REDUCTION_COMPUTE_TYPE, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
AS_LARGE(gg_cublas_algorithm, cublasLtMatmulAlgo_t);
AS_LARGE(gg_cublas_choice, cublasLtMatmulHeuristicResult_t);
SAME(offsetof(gg_cublas_choice, workspace), offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize));
SAME(offsetof(gg_cublas_choice, state), offsetof(cublasLtMatmulHeuristicResult_t, state));
"""


def test_numbers_of_the_real_headers(tmp_path):
    spec = importlib.util.find_spec("nvidia")
    places = [Path(p) for p in (spec.submodule_search_locations if spec else None) or ()]
    folders = [f for p in places for f in (p / "cu13" / "include", p / "cudnn" / "include") if f.is_dir()]
    toolkit = Path(os.environ.get("CUDA_HOME") or "/usr/local/cuda") / "include"
    folders.append(toolkit)
    if not all(any((f / h).exists() for f in folders) for h in ("cuda_runtime_api.h", "cublasLt.h", "cudnn.h")):
        pytest.skip("wants the headers of CUDA, cuDNN and cuBLASLt")
    source = tmp_path / "numbers.c"
    source.write_text(NUMBERS)
    headers = [word for folder in folders for word in ("-isystem", str(folder))]
    command = ["gcc", "-std=gnu11", "-fsyntax-only", f"-I{ROOT / 'csrc'}", *headers, str(source)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    listed = set(re.findall(r"\bGG_CU\w+(?= = )", (CUDA / "cuda_api.h").read_text()))
    unchecked = {n for n in listed if n not in NUMBERS} - {f"GG_{n}_SUCCESS" for n in ("CUDA", "CUDNN", "CUBLAS")}
    assert not unchecked


def test_a_library_that_is_not_there_or_of_another_build(tmp_path):
    named = tmp_path / "other.so"
    count, why, lines = asked(GOSSIPGRAD_CUDA_LIBRARY=str(named))
    assert count == 0 and lines == "" and str(named) in why and "GOSSIPGRAD_CUDA=on" in why
    assert "/nowhere\ufffd.so' is not there" in asked(GOSSIPGRAD_CUDA_LIBRARY=os.fsdecode(b"/nowhere\xff.so"))[1]
    named.write_text("not a library")
    assert "cannot load" in asked(GOSSIPGRAD_CUDA_LIBRARY=str(named))[1]
    source = tmp_path / "other.c"
    source.write_text("int gg_other;")
    compile_it = ["gcc", "-shared", "-fPIC", str(source), "-o", str(named)]
    subprocess.run(compile_it, check=True)
    assert "has no function gg_backend_library_open" in asked(GOSSIPGRAD_CUDA_LIBRARY=str(named))[1]
    source.write_text("static long sizes[16]; void *gg_backend_library_open(void *s) { (void)s; return sizes; }")
    subprocess.run(compile_it, check=True)
    assert "built from other sources" in asked(GOSSIPGRAD_CUDA_LIBRARY=str(named))[1]


# ------------------------------------------------------------------------------------------------ building


def test_wrong_choices(scratch_project, tmp_path):
    done = setup_py(scratch_project, "build_ext", "-i", check=False, GOSSIPGRAD_CUDA="yes")
    assert done.returncode and "'yes'; allowed: auto, on, off" in done.stderr
    folder = scratch_project / "csrc" / "cuda"
    shutil.rmtree(folder, ignore_errors=True)
    done = setup_py(scratch_project, "build_ext", "-i", check=False, GOSSIPGRAD_CUDA="on")
    assert done.returncode and "no sources in csrc/cuda" in done.stderr
    folder.mkdir()
    try:
        (folder / "x.c").write_text("int gg_x;\n")
        done = setup_py(scratch_project, "build_ext", "-i", check=False, GOSSIPGRAD_CUDA="on", NVCC="no-such-nvcc")
        assert done.returncode and "no CUDA compiler (no-such-nvcc)" in done.stderr
        old = tmp_path / "nvcc"
        old.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 12.4, V12.4.131'\n")
        old.chmod(0o755)
        done = setup_py(scratch_project, "build_ext", "-i", check=False, GOSSIPGRAD_CUDA="on", NVCC=str(old))
        assert done.returncode and "of version 12.4; 13.0 or newer is needed" in done.stderr
        done = setup_py(scratch_project, "build_ext", "-i", check=False, GOSSIPGRAD_CUDA="on", GOSSIPGRAD_BUILD="asan")
        assert done.returncode and "GOSSIPGRAD_BUILD=asan has no library of CUDA" in done.stderr
        # Where the compiler is not, a build is one without CUDA, and the room's C files are not compiled.
        left_behind = scratch_project / "gossipgrad" / "_cuda.so"
        left_behind.write_text("")
        for variables in ({"NVCC": "no-such-nvcc"}, {"NVCC": str(old)}, {"GOSSIPGRAD_CUDA": "off"}):
            assert not {n for n in compiled(setup_py(scratch_project, "build_ext", "-i", **variables)) if "cuda" in n}
            assert 'CUDA_VERSION = ""' in (scratch_project / "gossipgrad" / "_build.py").read_text()
            assert not left_behind.exists()
    finally:
        shutil.rmtree(folder)


def test_the_core_has_no_cuda():
    """Neither its objects nor what it needs: a machine without CUDA imports it."""
    archive = cbuild.ROOT / _build.OBJECTS / "libgossipgrad.a"
    members = subprocess.run(["ar", "t", str(archive)], check=True, capture_output=True, text=True).stdout.split()
    assert "library.o" in members and not {"cuda_api.o", "services.o"} & set(members)
    dynamic = subprocess.run(["readelf", "-d", _core.__file__], check=True, capture_output=True, text=True).stdout
    assert not re.search(r"\[lib(cuda|cudnn|cublas)", dynamic)


# ------------------------------------------------------------------------------------------- built on demand

FAKE_SETUP = """
import os, pathlib, sys, time
assert sys.argv[1:] == ["cuda"] and os.environ["GOSSIPGRAD_CUDA"] == "on" and os.environ["GOSSIPGRAD_ISAS"]
with open("log", "a") as log:
    log.write("built\\n")
time.sleep(0.2)
if os.path.exists("fails"):
    sys.exit("there is no CUDA compiler")
pathlib.Path("gossipgrad/_cuda.so").write_text("library")
"""


@pytest.fixture
def source_tree(tmp_path, monkeypatch):
    """An installed source tree without the library, on a machine with a GPU."""
    (tmp_path / "gossipgrad").mkdir()
    (tmp_path / "csrc" / "cuda").mkdir(parents=True)
    (tmp_path / _build.OBJECTS).mkdir(parents=True)
    (tmp_path / "setup.py").write_text(FAKE_SETUP)
    monkeypatch.setattr(cuda_build, "FOLDER", str(tmp_path / "gossipgrad"))
    monkeypatch.setattr(cuda_build, "has_gpu", lambda: True)
    for name in ("GOSSIPGRAD_CUDA", "GOSSIPGRAD_CUDA_LIBRARY"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_who_first_asks_builds_it_and_others_wait(source_tree, capfd):
    ranks = [threading.Thread(target=cuda_build.build) for _ in range(3)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    assert (source_tree / "gossipgrad" / "_cuda.so").exists()
    cuda_build.build()
    assert (source_tree / "log").read_text() == "built\n"
    assert capfd.readouterr().err.count("gossipgrad: building the library of CUDA") == 1


def test_it_is_not_built_where_it_is_of_no_use(source_tree, monkeypatch):
    for name, value in (("GOSSIPGRAD_CUDA", "off"), ("GOSSIPGRAD_CUDA_LIBRARY", "/other.so")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            cuda_build.build()
    with monkeypatch.context() as patch:
        patch.setattr(cuda_build, "has_gpu", lambda: False)
        cuda_build.build()
    (source_tree / "setup.py").rename(source_tree / "gone.py")  # as beside an installed wheel
    cuda_build.build()
    assert not (source_tree / "log").exists()


def test_a_build_that_fails_says_why_and_what_to_do(source_tree, monkeypatch):
    (source_tree / "fails").touch()
    net = gg.Sequential([gg.Linear(2)], input=(3,))
    with pytest.raises(NotImplementedError, match="(?s)GOSSIPGRAD_CUDA=on pip install -e .*no CUDA compiler"):
        gg.Trainer(net, comm=gg.VirtualCluster(1), device="cuda")
    with pytest.raises(ValueError, match="cuda0"):
        gg.Trainer(net, comm=gg.VirtualCluster(1), device="cuda0")  # no device: nothing is built
    assert (source_tree / "log").read_text() == "built\n"
    shutil.rmtree(source_tree / "build")
    with pytest.raises(NotImplementedError, match="cannot be written.*GOSSIPGRAD_CUDA=on pip install -e ."):
        cuda_build.build()


def test_auto_builds_it_where_a_gpu_is(scratch_project, tmp_path):
    """The compiler is not even asked for on a machine without a GPU."""
    if cuda_build.has_gpu():
        pytest.skip("this machine has a GPU")
    folder = scratch_project / "csrc" / "cuda"
    folder.mkdir()
    try:
        (folder / "x.c").write_text("#error never compiled\n")
        asked = tmp_path / "nvcc"
        asked.write_text(f"#!/bin/sh\ntouch {tmp_path / 'asked'}\nexit 1\n")
        asked.chmod(0o755)
        setup_py(scratch_project, "build_ext", "-i", NVCC=str(asked))
        assert not (tmp_path / "asked").exists()
    finally:
        shutil.rmtree(folder)
