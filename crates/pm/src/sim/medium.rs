//! [`Medium`] for [`Sim`], by the rules of the parent module.

use std::panic::Location;

use super::Sim;
use super::crash::CrashMoment;
use super::image::PoolImage;
use super::state::PersistRequest;
use crate::medium::{Caps, LINE, Medium, Off, Poisoned, Ticket, WORD, check_pair};
use crate::offset::end_offset;
use crate::persist_ctx::PersistCtx;
use crate::persistency::Persistency;
use crate::source_action::SourceAction;
use crate::sync::Arc;

impl Medium for Sim {
    fn caps(&self) -> &Caps {
        &self.shared.caps
    }

    fn len(&self) -> u64 {
        self.state().visible.len()
    }

    fn grow(&self, len: u64) -> std::io::Result<()> {
        let state = &mut *self.state();
        if len > state.visible.len() {
            state.visible.grow(len);
            state.durable.grow(len);
        }
        Ok(())
    }

    fn load(&self, at: Off) -> u64 {
        let mut state = self.state();
        state.decide(at, WORD);
        state.visible.word(at)
    }

    #[track_caller]
    fn store(&self, ctx: &mut PersistCtx, at: Off, value: u64) {
        let place = self.record_source_line(SourceAction::Store, Location::caller(), (at, WORD));
        let bytes = value.to_le_bytes();
        self.write(at, &bytes, &(0..0), (place, CrashMoment::Store));
        ctx.counters.bytes += WORD as u64;
    }

    #[track_caller]
    fn cas(&self, ctx: &mut PersistCtx, at: Off, old: u64, new: u64) -> Result<u64, u64> {
        let place = self.record_source_line(SourceAction::Store, Location::caller(), (at, WORD));
        let persistency = self.shared.persistency;
        let mut state = self.state();
        // On a file a drain is a request to sync, which a CPU instruction never makes.
        let drains = state.cas_drains && !persistency.is_file();
        let completes = drains && !state.pending(ctx.id()).is_empty();
        if persistency == Persistency::Eadr || completes {
            state = self.crash_point(state, CrashMoment::Store, place);
        }
        if drains && state.drains.poisoned.is_none() {
            state.complete(ctx.id());
        }
        state.decide(at, WORD);
        let found = state.visible.word(at);
        if found != old {
            return Err(found);
        }
        state.calls += 1;
        state.store(persistency, at, new, false, place);
        ctx.counters.bytes += WORD as u64;
        Ok(found)
    }

    fn copy_out(&self, at: Off, to: &mut [u8]) {
        let mut done = 0;
        let mut state = self.state();
        state.decide(at, to.len());
        state.visible.pieces(at, to.len(), |piece| {
            to[done..done + piece.len()].copy_from_slice(piece);
            done += piece.len();
            true
        });
    }

    fn append_out(&self, at: Off, len: usize, to: &mut Vec<u8>) {
        let mut state = self.state();
        state.decide(at, len);
        state.visible.pieces(at, len, |piece| {
            to.extend_from_slice(piece);
            true
        });
    }

    fn matches(&self, at: Off, bytes: &[u8]) -> bool {
        let mut rest = bytes;
        let mut state = self.state();
        if let Some(decided) = state.decide_match(at, bytes) {
            return decided;
        }
        state.visible.pieces(at, bytes.len(), |piece| {
            let (head, tail) = rest.split_at(piece.len());
            if head == piece {
                rest = tail;
            }
            head == piece
        });
        rest.is_empty()
    }

    #[track_caller]
    fn copy_in(&self, ctx: &mut PersistCtx, at: Off, parts: &[&[u8]]) {
        const LINE_BYTES: u64 = LINE as u64;
        let bytes = parts.concat();
        let end = end_offset(at, bytes.len());
        let first = at.0.checked_next_multiple_of(LINE_BYTES).unwrap_or(end);
        let whole = first..end / LINE_BYTES * LINE_BYTES;
        self.copy(ctx, at, &bytes, (whole, Location::caller()));
    }

    #[track_caller]
    fn copy_in_pair(&self, ctx: &mut PersistCtx, at: Off, pair: [u64; 2]) {
        check_pair(at);
        let bytes = pair.map(u64::to_le_bytes);
        let around = at.0..end_offset(at, bytes.as_flattened().len());
        self.copy(ctx, at, bytes.as_flattened(), (around, Location::caller()));
    }

    #[track_caller]
    fn flush(&self, ctx: &mut PersistCtx, at: Off, len: usize) {
        let from = Location::caller();
        let place = self.record_source_line(SourceAction::Flush, from, (at, len));
        self.state().visible.pieces(at, len, |_| false);
        self.flush_range(ctx, (at, len), place, (SourceAction::Flush, from));
    }

    #[track_caller]
    fn drain(&self, ctx: &mut PersistCtx) -> Ticket {
        let from = Location::caller();
        let place = self.record_source_line(SourceAction::Drain, from, (Off::NULL, 0));
        if !ctx.is_undrained() {
            return Ticket::DURABLE;
        }
        if self.dropped_part(SourceAction::Drain, from).is_some() {
            return self.ticket(self.state().drains.issued_ticket);
        }
        ctx.take_undrained();
        ctx.counters.fences += 1;
        let mut state = self.state();
        if self.shared.persistency != Persistency::Eadr {
            state = self.crash_point(state, CrashMoment::Drain, place);
        }
        if state.drains.count_drain() {
            let wakers = state.drains.wakers.clone();
            drop(state);
            wakers.iter().for_each(|wake| wake());
            return Ticket(u64::MAX);
        }
        if !self.shared.persistency.is_file() {
            state.complete(ctx.id());
            return Ticket::DURABLE;
        }
        let pending = std::mem::take(state.pending(ctx.id()));
        state
            .drains
            .waiting
            .extend(pending.into_iter().map(|r| PersistRequest { place, ..r }));
        state.drains.issued_ticket += 1;
        self.ticket(state.drains.issued_ticket)
    }

    /// All threads see every copy at once: write-combining buffers are not simulated.
    fn make_visible(&self, _: &mut PersistCtx) {}

    fn poll(&self, ticket: Ticket) -> Result<bool, Poisoned> {
        let state = self.state();
        match &state.drains.poisoned {
            _ if ticket.0 <= state.drains.durable_ticket => Ok(true),
            Some(poisoned) => Err(poisoned.clone()),
            None => Ok(false),
        }
    }

    fn wait(&self, ticket: Ticket) -> Result<(), Poisoned> {
        if self.poll(ticket)? {
            Ok(())
        } else {
            self.sync()
        }
    }

    fn wait_until_durable(&self, ticket: Ticket) -> Result<(), Poisoned> {
        match self.shared.persistency {
            Persistency::Relaxed => self.sync(),
            _ => self.wait(ticket),
        }
    }

    fn on_durable(&self, wake: Arc<dyn Fn() + Send + Sync>) {
        if self.shared.persistency.is_file() {
            self.state().drains.wakers.push(wake);
        }
    }

    fn crc(&self, at: Off, len: usize, seed: u32) -> u32 {
        let mut state = self.state();
        match state.decide_intact(at, len, &<[u8]>::len) {
            None => crc_of(&state.visible, at, len, seed),
            Some(torn) if torn.is_empty() => crc_of(&state.representative(at, len), at, len, seed),
            Some(whole) => crc32c::crc32c_append(seed, &whole),
        }
    }

    fn crc_is(&self, at: Off, len: usize, seed: u32, expected: u32) -> bool {
        let passes = |bytes: &[u8]| match crc32c::crc32c_append(seed, bytes) == expected {
            true => bytes.len(),
            false => 0,
        };
        let decided = self.state().decide_intact(at, len, &passes);
        decided.map_or_else(
            || self.crc(at, len, seed) == expected,
            |whole| !whole.is_empty(),
        )
    }

    fn copy_out_if(&self, at: Off, to: &mut [u8], check: &dyn Fn(&[u8]) -> usize) -> bool {
        let mut state = self.state();
        let Some(whole) = state.decide_intact(at, to.len(), check) else {
            drop(state);
            self.copy_out(at, to);
            return check(to) != 0;
        };
        if whole.is_empty() {
            let image = state.representative(at, to.len());
            let mut rest = to;
            image.pieces(at, rest.len(), |piece| {
                let (head, tail) = std::mem::take(&mut rest).split_at_mut(piece.len());
                head.copy_from_slice(piece);
                rest = tail;
                true
            });
            return false;
        }
        to.fill(0);
        to[..whole.len()].copy_from_slice(&whole);
        true
    }

    fn prefetch(&self, _at: Off, _len: usize) {}
}

fn crc_of(image: &PoolImage, at: Off, len: usize, seed: u32) -> u32 {
    let mut crc = seed;
    image.pieces(at, len, |piece| {
        crc = crc32c::crc32c_append(crc, piece);
        true
    });
    crc
}
