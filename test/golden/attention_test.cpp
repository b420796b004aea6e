// Attention as `kvcodec attend` computes it, with what a kv file says of the model's scores, is that of the model's forward pass.
#include <numeric>
#include <set>

#include "formats/cache/score_forms.hpp"
#include "formats/models/model_files.hpp"
#include "lib/model/llama.hpp"
#include "lib/pipeline/attend.hpp"
#include "test/golden/fixtures.hpp"
#include "test/test.hpp"

namespace attention_test {

using namespace kvcodec;

namespace {

/// Attention by attend_causally, with these forms of scores.
class ByAttend final : public AttentionMethod {
 public:
  ByAttend(const ModelConfig& config, const ScoreForms& forms) : config_(config), forms_(forms) {}

  void attend(const AttentionRows& rows) override {
    const ModelConfig own = config_.of_layer(rows.layer);
    const GroupShape shape = usual_group(rows.layer, 1, own.num_kv_heads, own.head_dim);
    const auto source = AttentionSource::of_rows(
        shape,
        [&](Side side, uint64_t first, MatrixView<float> out) {
          const MatrixView<const float> from = side == Side::key ? rows.key : rows.value;
          for (size_t i = 0; i < out.rows(); ++i) std::ranges::copy(from.row(first + i), out.row(i).begin());
        },
        own.value_dim());
    std::vector<uint64_t> positions(rows.key.rows()), visible, from;
    std::iota(positions.begin(), positions.end(), uint64_t{0});
    for (uint64_t at = rows.position; at < rows.position + rows.query.rows(); ++at) {
      visible.push_back(at + 1);
      from.push_back(forms_.first_seen(rows.layer, positions, at));
    }
    attend_causally(shape, source, {config_.num_q_heads, rows.query, visible, from, forms_.of(rows.layer)},
                    rows.out);
  }

 private:
  const ModelConfig& config_;
  const ScoreForms& forms_;
};

class Logits final : public PrefillSink {
 public:
  void layer(const LayerChunk&) override {}
  void logits(size_t, MatrixView<const float> rows) override {
    for (size_t i = 0; i < rows.rows(); ++i) all.insert(all.end(), rows.row(i).begin(), rows.row(i).end());
  }
  std::vector<float> all;
};

std::vector<float> logits(const LlamaModel& model, AttentionMethod* attention) {
  std::vector<uint32_t> tokens(60);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<uint32_t>(i * i * 7 % 60);
  const std::vector<uint64_t> offsets{0, 41, 60};
  Logits sink;
  model.prefill({tokens, offsets}, {.logits = LogitRows::all, .attention = attention}, sink);
  return sink.all;
}

double difference(std::span<const float> a, std::span<const float> b) {
  REQUIRE_EQ(a.size(), b.size());
  double error = 0, size = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    error += (double(a[i]) - b[i]) * (double(a[i]) - b[i]);
    size += double(b[i]) * b[i];
  }
  return std::sqrt(error / size);
}

}  // namespace

TEST_CASE("attend: with the forms of scores that a kv file holds, a model's logits are its own") {
  std::set<std::string> changed;  // families whose logits are others with a plain softmax
  for (const std::string& name : test::golden_models()) {
    CAPTURE(name);
    const auto files = open_model(test::source_dir() + "/test/golden/model/" + name);
    const LlamaModel model(files->description().config, files->weights());
    const ModelConfig& config = model.config();
    ModelInfo info = model_info(name, files->description(), false);
    info.scores = text_of(score_forms(*files));
    const ScoreForms forms = score_forms(info), plain{.q_heads = forms.q_heads};
    REQUIRE(forms.known);
    ByAttend by_file(config, forms), by_none(config, plain);
    const std::vector<float> own = logits(model, nullptr);
    CHECK(difference(logits(model, &by_file), own) < 1e-5);
    if (info.scores == "{}") continue;
    if (difference(logits(model, &by_none), own) > 1e-4) changed.insert(config.family);
  }
  CHECK(changed.contains("gemma2"));       // windows and caps
  CHECK(changed.contains("gemma3_text"));  // windows
  CHECK(changed.contains("gpt_oss"));      // windows and sinks
}

}  // namespace attention_test
