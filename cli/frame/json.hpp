// What --json prints: the pieces that several subcommands share. Keys are stable; new ones may be added.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include "cli/frame/command.hpp"
#include "formats/cache/codes_file.hpp"
#include "formats/cache/header.hpp"
#include "lib/core/names.hpp"
#include "lib/core/record.hpp"
#include "lib/metrics/interval.hpp"

/// Enums are printed by their names, never as the numbers that the library would make of them.
template <kvcodec::NamedEnum E>
struct nlohmann::adl_serializer<E> {
  template <class AnyJson>
  static void to_json(AnyJson& json, E value) {
    json = kvcodec::name_of(value);
  }
};

namespace kvcodec::cli {

using Json = nlohmann::ordered_json;

Json to_json(const Record& record);
Json to_json(const ModelInfo& model);
Json to_json(const Documents& documents);
/// A mean and half of its 95% interval, null where one document says nothing of others.
Json to_json(const Estimate& estimate);

/// Indented, one line feed at the end. Numbers that are not finite become null; text that is not UTF-8 is
/// mended.
std::string text_of(const Json& json);

/// The start of every result that others take up (`kvcodec report`): which program made it, when, and by what
/// command line; as the files say it (FORMAT.md, "Every file").
Json made_by(const Command& command);

}  // namespace kvcodec::cli
