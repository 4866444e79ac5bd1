#include "trace/piece_log.h"

namespace ringtune {

PieceLog::PieceLog(Tracer& tracer, const Span& batch) noexcept : tracer_(tracer), batch_(batch) { t_current = this; }
PieceLog::~PieceLog() { t_current = nullptr; }

}  // namespace ringtune
