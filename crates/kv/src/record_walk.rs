//! The records of a segment, one after the other, for the cleaner, the sweep and checks.
//!
//! A [`Walk`] keeps its place: the cleaner stops after some records and goes on later. What it has yet to read must not be
//! reborn meanwhile.

use farbank_pm::sync::atomic::Ordering::Relaxed;
use farbank_pm::{Medium, Off};

use crate::engine::Engine;
use crate::read::FETCHED_VALUE;
use crate::record::{ALIGN, RecordHeader, RecordType, ValueExtent};
use crate::segment::FIRST;

/// Live records that are fetched before they are looked at.
const PLACES_AHEAD: usize = 8;

/// The records that lie in a stretch of one segment.
struct RecordSpan {
    base: Off,
    within: usize,
    end: usize,
    /// Whether all bytes so far were records.
    whole: bool,
}

impl RecordSpan {
    fn new<M: Medium>(engine: &Engine<M>, segment: u32, end: usize) -> RecordSpan {
        RecordSpan {
            base: engine.geometry.base(segment),
            within: FIRST,
            end,
            whole: true,
        }
    }

    /// The next record, members of groups and large groups' records included.
    fn next<M: Medium>(&mut self, engine: &Engine<M>) -> Option<(Off, RecordHeader)> {
        while self.within < self.end {
            let at = self.base.plus(self.within as u64);
            let Some(header) = engine.header(at) else {
                self.within += ALIGN;
                self.whole = false;
                continue;
            };
            if header.what == RecordType::Group && !header.large {
                // Its members follow its own header and are met next.
                self.within += header.len() + header.key_len;
            } else {
                self.within += engine.record_len(&header);
                return Some((at, header));
            }
        }
        None
    }
}

/// Where a walk finds the segment's own records.
enum WalkScope {
    /// At one of the two places of each pair, which the live map names.
    Places {
        places: Vec<[Off; 2]>,
        next: usize,
        whole: bool,
    },
    /// One after the other.
    Span(RecordSpan),
}

/// A walk through the records of a segment, members of groups included wherever they lie. A large group itself comes after its
/// members.
pub(crate) struct RecordWalk {
    own: WalkScope,
    /// Extents of a large group whose members are met now, the next last.
    members: Vec<RecordSpan>,
    /// That group.
    group: Option<(Off, RecordHeader)>,
}

impl RecordWalk {
    /// A walk through the first `end` bytes of `segment`.
    pub(crate) fn through<M: Medium>(engine: &Engine<M>, segment: u32, end: usize) -> RecordWalk {
        RecordWalk::over(WalkScope::Span(RecordSpan::new(engine, segment, end)))
    }

    /// A walk through the records that begin at one of the two places of each pair.
    pub(crate) fn at(places: Vec<[Off; 2]>) -> RecordWalk {
        RecordWalk::over(WalkScope::Places {
            places,
            next: 0,
            whole: true,
        })
    }

    fn over(own: WalkScope) -> RecordWalk {
        RecordWalk {
            own,
            members: Vec::new(),
            group: None,
        }
    }

    /// The next record; `None` at the end.
    pub(crate) fn next<M: Medium>(&mut self, engine: &Engine<M>) -> Option<(Off, RecordHeader)> {
        loop {
            if let Some(span) = self.members.last_mut() {
                match span.next(engine) {
                    Some(member) => return Some(member),
                    None => self.members.pop(),
                };
                continue;
            }
            if let Some(group) = self.group.take() {
                return Some(group);
            }
            let (at, header) = self.next_own(engine)?;
            if header.what != RecordType::Group {
                return Some((at, header));
            }
            let table = engine.table_of(at, &header);
            // An entry of a damaged table may name anything.
            let alive = ValueExtent::decode_all(&table).filter(|extent| engine.is_alive(extent));
            let mut members: Vec<RecordSpan> = alive
                .map(|extent| {
                    let used = engine.info(extent.segment).used.load(Relaxed);
                    RecordSpan::new(engine, extent.segment, used as usize)
                })
                .collect();
            members.reverse();
            (self.members, self.group) = (members, Some((at, header)));
        }
    }

    fn next_own<M: Medium>(&mut self, engine: &Engine<M>) -> Option<(Off, RecordHeader)> {
        match &mut self.own {
            WalkScope::Span(span) => span.next(engine),
            WalkScope::Places {
                places,
                next,
                whole,
            } => {
                while let Some(place) = places.get(*next) {
                    if let Some([ahead, _]) = places.get(*next + PLACES_AHEAD) {
                        engine.medium().prefetch(*ahead, FETCHED_VALUE);
                    }
                    *next += 1;
                    let mut begins = place.iter().map(|at| (*at, engine.header(*at)));
                    match begins.find_map(|(at, header)| Some((at, header?))) {
                        Some(found) => return Some(found),
                        None => *whole = false,
                    }
                }
                None
            }
        }
    }

    /// Whether the segment's own bytes so far were all records, or each pair of places had one.
    pub(crate) fn is_whole(&self) -> bool {
        match &self.own {
            WalkScope::Span(span) => span.whole,
            WalkScope::Places { whole, .. } => *whole,
        }
    }
}

impl<M: Medium> Engine<M> {
    /// Calls `each` for every record in a segment's first `end` bytes, members of groups included
    /// wherever they lie; large groups themselves come after their members. Whether the segment's own bytes were all
    /// records.
    pub(crate) fn walk(
        &self,
        segment: u32,
        end: usize,
        each: &mut dyn FnMut(Off, &RecordHeader),
    ) -> bool {
        let mut walk = RecordWalk::through(self, segment, end);
        while let Some((at, header)) = walk.next(self) {
            each(at, &header);
        }
        walk.is_whole()
    }

    /// Calls `each` for every record that lies in a segment's first `end` bytes, members of groups and
    /// large groups' records included.
    pub(crate) fn walk_own(
        &self,
        segment: u32,
        end: usize,
        each: &mut dyn FnMut(Off, &RecordHeader),
    ) {
        let mut span = RecordSpan::new(self, segment, end);
        while let Some((at, header)) = span.next(self) {
            each(at, &header);
        }
    }
}
