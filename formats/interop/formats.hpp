// The formats, one file each; who wants to read or write one goes by the table (foreign.hpp).
#pragma once

#include "formats/interop/foreign.hpp"

namespace kvcodec::interop {

/// Tensors of a transformers DynamicCache in safetensors.
bool is_transformers(const std::string& file);
ForeignCache open_transformers(const std::vector<std::string>& files, const ImportOptions& options);
ExportResult write_transformers(const CacheSource& source, const ExportJob& job);

/// Prompt caches of mlx-lm.
bool is_mlx(const std::string& file);
ForeignCache open_mlx(const std::vector<std::string>& files, const ImportOptions& options);
ExportResult write_mlx(const CacheSource& source, const ExportJob& job);

/// Sequence and session states of llama.cpp.
bool is_llama(const std::string& file);
ForeignCache open_llama(const std::vector<std::string>& files, const ImportOptions& options);
ExportResult write_llama(const CacheSource& source, const ExportJob& job);

/// Chunks of LMCache with their header.
bool is_lmcache(const std::string& file);
ForeignCache open_lmcache(const std::vector<std::string>& files, const ImportOptions& options);
ExportResult write_lmcache(const CacheSource& source, const ExportJob& job);

/// Layers as vLLM's shared storage connector keeps them.
bool is_vllm(const std::string& file);
ForeignCache open_vllm(const std::vector<std::string>& files, const ImportOptions& options);
ExportResult write_vllm(const CacheSource& source, const ExportJob& job);

/// Raw blocks of vLLM's file tier, and raw pages of SGLang.
ForeignCache open_vllm_blocks(const std::vector<std::string>& files, const ImportOptions& options);
ExportResult write_vllm_blocks(const CacheSource& source, const ExportJob& job);
ForeignCache open_sglang(const std::vector<std::string>& files, const ImportOptions& options);
ExportResult write_sglang(const CacheSource& source, const ExportJob& job);

/// Arrays of NumPy.
bool is_numpy(const std::string& file);
ForeignCache open_numpy(const std::vector<std::string>& files, const ImportOptions& options);
ExportResult write_numpy(const CacheSource& source, const ExportJob& job);

}  // namespace kvcodec::interop
