// The subcommands, one file each. Each describes its command line, parses it, does its work and returns what
// goes to standard output, which is written only when all has gone well.
#pragma once

#include <string>

#include "cli/frame/command.hpp"

namespace kvcodec::cli {

std::string dump_kv(Command& command);
std::string import_cache(Command& command);
std::string export_cache(Command& command);
std::string train_dict(Command& command);
std::string train_rvq(Command& command);
std::string train_transform(Command& command);
std::string choose(Command& command);
std::string encode(Command& command);
std::string decode(Command& command);
std::string attend(Command& command);
std::string pack_indices(Command& command);
std::string index(Command& command);
std::string select(Command& command);
std::string ls(Command& command);
std::string cat(Command& command);
std::string rm(Command& command);
std::string compact(Command& command);
std::string split_file(Command& command);
std::string info(Command& command);
std::string check(Command& command);
std::string eval_recon(Command& command);
std::string eval_model(Command& command);
std::string sensitivity(Command& command);
std::string report(Command& command);

}  // namespace kvcodec::cli
