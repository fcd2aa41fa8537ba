// A profiler of a few lines: NVTX loads it when NVTX_INJECTION64_PATH names it, and it prints the
// ranges that a program opens and closes.
#include <nvtx3/nvToolsExt.h>

#include <cstdio>

namespace {

int NVTX_API push(const char* name) {
  std::printf("push %s,", name);
  return 0;
}
int NVTX_API pop() {
  std::printf("pop,");
  return 0;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int InitializeInjectionNvtx2(
    NvtxGetExportTableFunc_t get_table) {
  const auto* callbacks =
      static_cast<const NvtxExportTableCallbacks*>(get_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned size = 0;
  if (!callbacks || !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &table, &size))
    return 0;
  *table[NVTX_CBID_CORE_RangePushA] = reinterpret_cast<NvtxFunctionPointer>(push);
  *table[NVTX_CBID_CORE_RangePop] = reinterpret_cast<NvtxFunctionPointer>(pop);
  return 1;
}
