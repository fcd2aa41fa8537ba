# quipu-bench: which cases its options choose, what it refuses, and what it makes of a run. No time is looked at: earlier
# runs and peers here take a nanosecond, or an hour.
file(REMOVE_RECURSE ${scratch_dir})
file(MAKE_DIRECTORY ${scratch_dir}/temporary)
set(ENV{TMPDIR} ${scratch_dir}/temporary)

set(folder ${scratch_dir})
include(${CMAKE_CURRENT_LIST_DIR}/../run_program.cmake)

# Ours first, then examples, then Google Benchmark's.
must_say("--n LIST.*--page FILE.*Examples:.*--benchmark_filter=<regex>" 0 --help)

must_say("--n: wanted sizes from 1 to [0-9]+, such as 256,2048, got '0'" 2 --n 0)
must_say("got 'many'" 2 --n 256,many)
must_say("got ''" 2 --n 256,,2048)
must_say("got '-5'" 2 --n=-5)
must_say("got '99999999999999999999'" 2 --n 99999999999999999999)
must_say("--op: wanted some of act, .*tpa_decode.*, got 'nix'" 2 --op act,nix)
must_say("--dtype: wanted some of f32, bf16, f16, got 'f8'" 2 --dtype f8)
must_say("--pass: wanted some of fwd, bwd, got 'up'" 2 --pass up)
must_say("--device: wanted cpu, cuda or cuda:N, got 'gpu'" 2 --device gpu)
must_say("got 'meta:cpu'" 2 --device meta:cpu)
must_say("--unknown" 2 --unknown)
must_say("unrecognized command-line flag: --benchmark_nix" 2 --benchmark_nix=1)
must_say("cannot read none.jsonl" 1 --peers none.jsonl)
must_say("cannot read none.json" 1 --baseline none.json)
must_say("none/page.html" 1 --page none/page.html)
must_say("need json" 1 --page page.html --benchmark_out=times.csv --benchmark_out_format=csv)

# A choice of operators leaves out all other benchmarks.
run_program(0 names --op act --dtype f32,bf16 --pass fwd --n 2,3 --no-reference --benchmark_filter=relu --benchmark_list_tests)
set(expected "act/relu/fwd/f32/n:2/cpu
act/relu/fwd/f32/n:3/cpu
act/relu/fwd/bf16/n:2/cpu
act/relu/fwd/bf16/n:3/cpu
")
if(NOT names STREQUAL expected)
  message(FATAL_ERROR "--op act --dtype f32,bf16 --pass fwd --n 2,3 lists\n${names}\nnot\n${expected}")
endif()
must_say("act/relu/fwd/f32/n:2/reference" 0 --op act --n 2 --benchmark_list_tests)
must_say("matmul/f32/n:512/cpu.*act/relu/fwd/f32/n:256/cpu" 0 --benchmark_list_tests)

function(write_baseline name ms)
  file(WRITE ${scratch_dir}/${name} "{\"benchmarks\": [{\"name\": \"act/relu/fwd/f32/n:2/cpu\",
    \"run_type\": \"iteration\", \"real_time\": ${ms}, \"time_unit\": \"ms\"}]}")
endfunction()
write_baseline(fast.json 1e-6)
write_baseline(slow.json 3.6e6)
file(WRITE ${scratch_dir}/peers.jsonl
     "{\"op\": \"act_relu\", \"n\": 2, \"dtype\": \"f32\", \"pass\": \"fwd\", \"peer\": \"snail\", \"ms\": 3.6e6}\n")
set(short --op act --dtype f32 --pass fwd --n 2 --no-reference --benchmark_filter=relu --benchmark_min_time=0.001)
must_say("act/relu/fwd/f32/n:2/cpu [^\n]*  SLOWER.*1 rows, 1 slower" 0 ${short} --baseline fast.json --page page.html)
file(READ ${scratch_dir}/page.html page)
if(NOT page MATCHES "1 of 1 rows is slower than the baseline.*<td class=\"less slower\"")
  message(FATAL_ERROR "the page does not mark what is slower than the baseline:\n${page}")
endif()
must_say("1 rows, 0 slower by more than 5 %" 0 ${short} --baseline slow.json)
must_say("1 rows, 0 slower than the fastest peer" 0 ${short} --peers peers.jsonl --results results)
file(GLOB written RELATIVE ${scratch_dir}/results ${scratch_dir}/results/*)
if(NOT written MATCHES "[.]html;[^;]+[.]json;speed[.]svg")
  message(FATAL_ERROR "--results wrote ${written}")
endif()

# What no machine can hold is left out, and everything else goes on.
must_say("act/relu/fwd/f32/n:1073741824/cpu +ERROR OCCURRED: 'needs [0-9.]+ [A-Z]iB of memory, .* are available'.*All 1 rows" 0
         --op act --dtype f32 --pass fwd --n 1073741824,2 --no-reference --benchmark_filter=relu --benchmark_min_time=0.001
         --peers peers.jsonl)

file(GLOB left ${scratch_dir}/temporary/*)
if(left)
  message(FATAL_ERROR "files were left behind: ${left}")
endif()
