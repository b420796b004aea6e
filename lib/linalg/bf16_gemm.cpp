#include "lib/linalg/bf16_gemm.hpp"

#include "lib/core/error.hpp"

#ifdef KVCODEC_ONEDNN
#include <vector>

#include <dnnl.hpp>

#include "lib/core/aligned.hpp"
#include "lib/linalg/blas_thread.hpp"
#endif

namespace kvcodec {

#ifdef KVCODEC_ONEDNN

namespace {

using dnnl::memory;

memory::desc strided(size_t rows, size_t cols, memory::data_type type, size_t row_step, size_t col_step) {
  const auto dim = [](size_t value) { return static_cast<memory::dim>(value); };
  return {{dim(rows), dim(cols)}, type, memory::dims{dim(row_step), dim(col_step)}};
}

const dnnl::engine& cpu() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

dnnl::primitive_attr attributes(bool add) {
  dnnl::primitive_attr result;
  // Memory of our own: primitives of one shape share what they are made of between threads.
  result.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (add) {
    dnnl::post_ops sum;
    sum.append_sum(1);
    result.set_post_ops(sum);
  }
  return result;
}

/// oneDNN takes mutable memory for what it only reads.
memory memory_of(const memory::desc& desc, const void* data) {
  return {desc, cpu(), const_cast<void*>(data)};
}

}  // namespace

std::string why_no_bf16() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx512bf16") ? "" : "this processor has neither AVX512-BF16 nor AMX";
}

namespace {

void check_processor() {
  if (const std::string reason = why_no_bf16(); !reason.empty())
    throw failed("a product in bf16, but {}", reason);
}

/// What oneDNN throws becomes an Error.
template <class Call>
auto from_onednn(const Call& call) {
  try {
    return call();
  } catch (const dnnl::error& error) {
    throw failed("oneDNN: {}", error.what());
  }
}

/// Rows of bf16 as they lie, or turned: columns for rows.
memory::desc desc_of(MatrixView<const uint16_t> x, bool turned = false) {
  if (turned) return strided(x.cols(), x.rows(), memory::data_type::bf16, 1, x.stride());
  return strided(x.rows(), x.cols(), memory::data_type::bf16, x.stride(), 1);
}
memory::desc desc_of(MatrixView<float> out) {
  return strided(out.rows(), out.cols(), memory::data_type::f32, out.stride(), 1);
}

dnnl::matmul::primitive_desc product(const memory::desc& x, const memory::desc& w, const memory::desc& out,
                                     bool add = false) {
  return {{x, w, out}, attributes(add), cpu()};
}

void execute(const dnnl::matmul::primitive_desc& desc, const void* x, const void* w, float* out) {
  const OnThisThread on_this_thread;  // oneDNN takes threads as OpenBLAS does
  thread_local std::vector<std::byte> scratch;
  if (scratch.size() < desc.scratchpad_desc().get_size()) scratch.resize(desc.scratchpad_desc().get_size());
  dnnl::stream stream(cpu());
  dnnl::matmul(desc).execute(stream,
                             {{DNNL_ARG_SRC, memory_of(desc.src_desc(), x)},
                              {DNNL_ARG_WEIGHTS, memory_of(desc.weights_desc(), w)},
                              {DNNL_ARG_DST, memory_of(desc.dst_desc(), out)},
                              {DNNL_ARG_SCRATCHPAD, memory_of(desc.scratchpad_desc(), scratch.data())}});
  stream.wait();
}

}  // namespace

void gemm_bf16(MatrixView<const uint16_t> x, MatrixView<const uint16_t> w, Transpose op, bool add,
               MatrixView<float> out) {
  const bool turned = op == Transpose::yes;
  const size_t inner = turned ? w.cols() : w.rows(), columns = turned ? w.rows() : w.cols();
  if (x.cols() == 0 || x.cols() != inner || out.rows() != x.rows() || out.cols() != columns)
    throw failed("product of ({}, {}) and {}({}, {}) to ({}, {})", x.rows(), x.cols(),
                 turned ? "the transpose of " : "", w.rows(), w.cols(), out.rows(), out.cols());
  check_processor();
  if (out.rows() == 0 || out.cols() == 0) return;
  from_onednn([&] {
    execute(product(desc_of(x), desc_of(w, turned), desc_of(out), add), x.data(), w.data(), out.data());
  });
}

struct PackedBf16::Impl {
  size_t rows, cols;
  memory::desc desc;
  UnsetVector<std::byte> bytes = {};
};

PackedBf16::PackedBf16(MatrixView<const uint16_t> w) {
  if (w.rows() == 0 || w.cols() == 0) throw failed("a matrix of ({}, {}) to pack", w.rows(), w.cols());
  check_processor();
  impl_ = from_onednn([&] {
    // oneDNN chooses the order by columns and inner dimension, whatever the rows of the other matrix.
    constexpr size_t kRows = 512;
    const auto dim = [](size_t value) { return static_cast<memory::dim>(value); };
    const memory::desc any({dim(w.cols()), dim(w.rows())}, memory::data_type::bf16, memory::format_tag::any);
    const auto chosen = product(strided(kRows, w.cols(), memory::data_type::bf16, w.cols(), 1), any,
                                strided(kRows, w.rows(), memory::data_type::f32, w.rows(), 1));
    auto packed = std::make_shared<Impl>(Impl{w.rows(), w.cols(), chosen.weights_desc()});
    packed->bytes.resize(packed->desc.get_size());
    const OnThisThread on_this_thread;
    dnnl::stream stream(cpu());
    memory from = memory_of(desc_of(w, true), w.data()), to = memory_of(packed->desc, packed->bytes.data());
    dnnl::reorder(from, to).execute(stream, from, to);
    stream.wait();
    return packed;
  });
}

size_t PackedBf16::rows() const { return impl_->rows; }
size_t PackedBf16::cols() const { return impl_->cols; }

void gemm_bf16(MatrixView<const uint16_t> x, const PackedBf16& w, bool add, MatrixView<float> out) {
  if (x.cols() != w.cols() || out.rows() != x.rows() || out.cols() != w.rows() || !x.contiguous() ||
      !out.contiguous())
    throw failed("product of ({}, {}) and the transpose of packed ({}, {}) to ({}, {}){}", x.rows(), x.cols(),
                 w.rows(), w.cols(), out.rows(), out.cols(),
                 x.contiguous() && out.contiguous() ? "" : " with gaps between rows");
  if (out.rows() == 0) return;
  const PackedBf16::Impl& packed = *w.impl_;
  from_onednn([&] {
    // One row may have any stride; oneDNN is told that there is no gap.
    const MatrixView<const uint16_t> rows(x.data(), x.rows(), x.cols());
    const MatrixView<float> to(out.data(), out.rows(), out.cols());
    execute(product(desc_of(rows), packed.desc, desc_of(to), add), x.data(), packed.bytes.data(), out.data());
  });
}

#else

std::string why_no_bf16() { return "this build has no oneDNN (libdnnl)"; }

void gemm_bf16(MatrixView<const uint16_t>, MatrixView<const uint16_t>, Transpose, bool, MatrixView<float>) {
  throw failed("a product in bf16, but {}", why_no_bf16());
}

struct PackedBf16::Impl {};
PackedBf16::PackedBf16(MatrixView<const uint16_t>) {
  throw failed("a product in bf16, but {}", why_no_bf16());
}
size_t PackedBf16::rows() const { return 0; }
size_t PackedBf16::cols() const { return 0; }
void gemm_bf16(MatrixView<const uint16_t>, const PackedBf16&, bool, MatrixView<float>) {}

#endif

}  // namespace kvcodec
