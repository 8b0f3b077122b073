//! The execution of one request on a memory server.

use farbank_pm::{Medium, PersistCtx};

use crate::server::{Caller, MemoryNode};
use crate::wire::{
    BatchReader, Failure, Frame, FrameKind, WireError, decode_call, encode_failure,
    encode_response, put_frame,
};

/// Executes one request and appends its response to `out`.
pub(super) fn execute<M: Medium>(
    node: &MemoryNode<M>,
    caller: &Caller,
    ctx: &mut PersistCtx,
    frame: Frame<'_>,
    out: &mut Vec<u8>,
) -> Result<(), WireError> {
    match frame.kind {
        FrameKind::Batch if node.is_one_sided() => {
            encode_failure(frame.id, Failure::Rejected, out);
        }
        FrameKind::Batch => {
            let batch = BatchReader::new(frame.body)?;
            let start = out.len();
            let mut done = Ok(Ok(()));
            put_frame(out, FrameKind::Results, frame.id, |out| {
                done = node.batch(ctx, caller, batch, out);
            });
            if let Err(failure) = done? {
                out.truncate(start);
                encode_failure(frame.id, failure, out);
            }
        }
        FrameKind::Call => match node.call(ctx, caller, decode_call(frame.body)?) {
            Ok(response) => encode_response(frame.id, response, out),
            Err(failure) => encode_failure(frame.id, failure, out),
        },
        kind => {
            return Err(WireError::Field {
                name: "kind",
                found: kind as u64,
            });
        }
    }
    Ok(())
}
