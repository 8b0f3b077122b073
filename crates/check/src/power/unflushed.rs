//! Medium that makes nothing durable. Tests use it to prove that a power cut loses unflushed writes.

use std::io;
use std::sync::Arc;

use farbank_pm::{Caps, Medium, Off, PersistCtx, Poisoned, Ticket};

/// Medium whose stores stay in the CPU cache: flush and drain do nothing. All other operations are unchanged.
pub struct UnflushedMedium<M>(pub M);

impl<M: Medium> Medium for UnflushedMedium<M> {
    fn caps(&self) -> &Caps {
        self.0.caps()
    }

    fn len(&self) -> u64 {
        self.0.len()
    }

    fn grow(&self, len: u64) -> io::Result<()> {
        self.0.grow(len)
    }

    fn load(&self, at: Off) -> u64 {
        self.0.load(at)
    }

    fn store(&self, ctx: &mut PersistCtx, at: Off, value: u64) {
        self.0.store(ctx, at, value);
    }

    fn cas(&self, ctx: &mut PersistCtx, at: Off, old: u64, new: u64) -> Result<u64, u64> {
        self.0.cas(ctx, at, old, new)
    }

    fn copy_out(&self, at: Off, to: &mut [u8]) {
        self.0.copy_out(at, to);
    }

    fn append_out(&self, at: Off, len: usize, to: &mut Vec<u8>) {
        self.0.append_out(at, len, to);
    }

    fn matches(&self, at: Off, bytes: &[u8]) -> bool {
        self.0.matches(at, bytes)
    }

    fn copy_in(&self, ctx: &mut PersistCtx, at: Off, parts: &[&[u8]]) {
        let bytes = parts.concat();
        for (chunk, i) in bytes.chunks(8).zip(0..) {
            let at = at.plus(8 * i);
            let mut word = self.0.load(at).to_le_bytes();
            word[..chunk.len()].copy_from_slice(chunk);
            self.0.store(ctx, at, u64::from_le_bytes(word));
        }
    }

    fn flush(&self, _: &mut PersistCtx, _: Off, _: usize) {}

    fn drain(&self, _: &mut PersistCtx) -> Ticket {
        Ticket::DURABLE
    }

    fn make_visible(&self, ctx: &mut PersistCtx) {
        self.0.make_visible(ctx);
    }

    fn poll(&self, ticket: Ticket) -> Result<bool, Poisoned> {
        self.0.poll(ticket)
    }

    fn wait(&self, ticket: Ticket) -> Result<(), Poisoned> {
        self.0.wait(ticket)
    }

    fn unreadable(&self, at: Off, len: usize) -> Option<Off> {
        self.0.unreadable(at, len)
    }

    fn on_durable(&self, wake: Arc<dyn Fn() + Send + Sync>) {
        self.0.on_durable(wake);
    }

    fn crc(&self, at: Off, len: usize, seed: u32) -> u32 {
        self.0.crc(at, len, seed)
    }

    fn prefetch(&self, at: Off, len: usize) {
        self.0.prefetch(at, len);
    }
}
