//! Media that are parts of other media. One modelled medium can hold both the metadata and the items. Or the first
//! bytes of the metadata are in DRAM and all others on the modelled medium.

use std::io;
use std::sync::Arc;

use farbank_pm::media::Mapped;
use farbank_pm::model::Modelled;
use farbank_pm::{Caps, Medium, Off, PersistCtx, Poisoned, Ticket};

/// How stores to a part are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum WriteMode {
    /// Unchanged.
    Plain,
    /// Every store is written back, so that metadata is on the medium and not only in caches.
    Through,
}

/// `len` bytes of a medium, starting at `base`.
pub(super) struct MediumPart {
    pub(super) medium: Arc<Modelled<Mapped>>,
    pub(super) base: u64,
    pub(super) len: u64,
    pub(super) writing: WriteMode,
}

impl MediumPart {
    fn at(&self, at: Off, len: usize) -> Off {
        assert!(
            at.0 + len as u64 <= self.len,
            "{at:?} is outside of this part of the medium"
        );
        Off(self.base + at.0)
    }
}

impl Medium for MediumPart {
    fn caps(&self) -> &Caps {
        self.medium.caps()
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn grow(&self, _: u64) -> io::Result<()> {
        Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "a part of a medium cannot grow",
        ))
    }

    fn load(&self, at: Off) -> u64 {
        self.medium.load(self.at(at, 8))
    }

    #[track_caller]
    fn store(&self, ctx: &mut PersistCtx, at: Off, value: u64) {
        self.medium.store(ctx, self.at(at, 8), value);
        if self.writing == WriteMode::Through {
            self.medium.flush(ctx, self.at(at, 8), 8);
        }
    }

    #[track_caller]
    fn cas(&self, ctx: &mut PersistCtx, at: Off, old: u64, new: u64) -> Result<u64, u64> {
        self.medium.cas(ctx, self.at(at, 8), old, new)
    }

    fn copy_out(&self, at: Off, to: &mut [u8]) {
        self.medium.copy_out(self.at(at, to.len()), to);
    }

    fn append_out(&self, at: Off, len: usize, to: &mut Vec<u8>) {
        self.medium.append_out(self.at(at, len), len, to);
    }

    fn matches(&self, at: Off, bytes: &[u8]) -> bool {
        self.medium.matches(self.at(at, bytes.len()), bytes)
    }

    #[track_caller]
    fn copy_in(&self, ctx: &mut PersistCtx, at: Off, parts: &[&[u8]]) {
        let len = parts.iter().map(|part| part.len()).sum();
        self.medium.copy_in(ctx, self.at(at, len), parts);
    }

    #[track_caller]
    fn flush(&self, ctx: &mut PersistCtx, at: Off, len: usize) {
        self.medium.flush(ctx, self.at(at, len), len);
    }

    #[track_caller]
    fn drain(&self, ctx: &mut PersistCtx) -> Ticket {
        self.medium.drain(ctx)
    }

    fn make_visible(&self, ctx: &mut PersistCtx) {
        self.medium.make_visible(ctx);
    }

    fn poll(&self, ticket: Ticket) -> Result<bool, Poisoned> {
        self.medium.poll(ticket)
    }

    fn wait(&self, ticket: Ticket) -> Result<(), Poisoned> {
        self.medium.wait(ticket)
    }

    fn on_durable(&self, wake: Arc<dyn Fn() + Send + Sync>) {
        self.medium.on_durable(wake);
    }

    fn crc(&self, at: Off, len: usize, seed: u32) -> u32 {
        self.medium.crc(self.at(at, len), len, seed)
    }

    fn prefetch(&self, at: Off, len: usize) {
        if at.0 + len as u64 <= self.len {
            self.medium.prefetch(Off(self.base + at.0), len);
        }
    }
}

/// Medium whose first bytes are in DRAM, which is not modelled, and whose other bytes are a part of the far medium.
pub(super) struct SplitMedium {
    pub(super) near: Mapped,
    pub(super) far: MediumPart,
    /// Offset of the first byte on the far medium.
    pub(super) far_from: u64,
}

impl SplitMedium {
    fn pick(&self, at: Off) -> &dyn Medium {
        match at.0 < self.far_from {
            true => &self.near,
            false => &self.far,
        }
    }
}

impl Medium for SplitMedium {
    fn caps(&self) -> &Caps {
        self.far.caps()
    }

    fn len(&self) -> u64 {
        self.far.len()
    }

    fn grow(&self, len: u64) -> io::Result<()> {
        self.far.grow(len)
    }

    fn load(&self, at: Off) -> u64 {
        self.pick(at).load(at)
    }

    #[track_caller]
    fn store(&self, ctx: &mut PersistCtx, at: Off, value: u64) {
        self.pick(at).store(ctx, at, value);
    }

    #[track_caller]
    fn cas(&self, ctx: &mut PersistCtx, at: Off, old: u64, new: u64) -> Result<u64, u64> {
        self.pick(at).cas(ctx, at, old, new)
    }

    fn copy_out(&self, at: Off, to: &mut [u8]) {
        self.pick(at).copy_out(at, to);
    }

    fn append_out(&self, at: Off, len: usize, to: &mut Vec<u8>) {
        self.pick(at).append_out(at, len, to);
    }

    fn matches(&self, at: Off, bytes: &[u8]) -> bool {
        self.pick(at).matches(at, bytes)
    }

    #[track_caller]
    fn copy_in(&self, ctx: &mut PersistCtx, at: Off, parts: &[&[u8]]) {
        self.pick(at).copy_in(ctx, at, parts);
    }

    #[track_caller]
    fn flush(&self, ctx: &mut PersistCtx, at: Off, len: usize) {
        self.pick(at).flush(ctx, at, len);
    }

    #[track_caller]
    fn drain(&self, ctx: &mut PersistCtx) -> Ticket {
        self.far.drain(ctx)
    }

    fn make_visible(&self, ctx: &mut PersistCtx) {
        self.far.make_visible(ctx);
    }

    fn poll(&self, ticket: Ticket) -> Result<bool, Poisoned> {
        self.far.poll(ticket)
    }

    fn wait(&self, ticket: Ticket) -> Result<(), Poisoned> {
        self.far.wait(ticket)
    }

    fn on_durable(&self, wake: Arc<dyn Fn() + Send + Sync>) {
        self.far.on_durable(wake);
    }

    fn crc(&self, at: Off, len: usize, seed: u32) -> u32 {
        self.pick(at).crc(at, len, seed)
    }

    fn prefetch(&self, at: Off, len: usize) {
        self.pick(at).prefetch(at, len);
    }
}
