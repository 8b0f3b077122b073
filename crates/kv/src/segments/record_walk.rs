//! Iteration over the records of a segment, for the cleaner, the removal of expired records and checks.
//!
//! A [`RecordWalk`] can be suspended: the cleaner stops after some records and continues later. Segments that the walk
//! has yet to read must not be recycled meanwhile.

use farbank_pm::sync::atomic::Ordering::Relaxed;
use farbank_pm::{Medium, Off};

use crate::format::record::{ALIGN, RecordHeader, RecordType, ValueExtent};
use crate::format::segment::FIRST;
use crate::segments::Segments;
use crate::segments::records::FETCHED_VALUE;

/// Prefetch distance among the places of a walk, in records.
const PLACES_AHEAD: usize = 8;

/// Iteration over all records in a range of one segment.
struct RecordSpan {
    base: Off,
    within: usize,
    end: usize,
    /// Whether all bytes so far belonged to records.
    whole: bool,
}

impl RecordSpan {
    fn new<M: Medium>(segments: &Segments<M>, segment: u32, end: usize) -> RecordSpan {
        RecordSpan {
            base: segments.geometry().base(segment),
            within: FIRST,
            end,
            whole: true,
        }
    }

    /// Returns the next record. Members of small groups and the records of large groups are included.
    fn next<M: Medium>(&mut self, segments: &Segments<M>) -> Option<(Off, RecordHeader)> {
        while self.within < self.end {
            let at = self.base.plus(self.within as u64);
            let Some(header) = segments.header(at) else {
                self.within += ALIGN;
                self.whole = false;
                continue;
            };
            if header.what == RecordType::Group && !header.large {
                // Skips only the group's own header: its members follow.
                self.within += header.len() + header.key_len;
            } else {
                self.within += segments.record_len(&header);
                return Some((at, header));
            }
        }
        None
    }
}

/// Source of the offsets of the segment's own records.
enum WalkScope {
    /// Pairs of offsets from the live map. A record begins at one offset of each pair.
    Places {
        places: Vec<[Off; 2]>,
        next: usize,
        whole: bool,
    },
    /// All records of a range.
    Span(RecordSpan),
}

/// Iteration over the records of a segment, including the members of its groups. The members of a large group lie in
/// extents; the record of the group comes after its members.
pub(crate) struct RecordWalk {
    own: WalkScope,
    /// Extents of the current large group that are not finished. The current extent is the last in the list.
    members: Vec<RecordSpan>,
    /// The record of the current large group.
    group: Option<(Off, RecordHeader)>,
}

impl RecordWalk {
    /// Returns a walk over the first `end` bytes of `segment`.
    pub(crate) fn through<M: Medium>(
        segments: &Segments<M>,
        segment: u32,
        end: usize,
    ) -> RecordWalk {
        RecordWalk::over(WalkScope::Span(RecordSpan::new(segments, segment, end)))
    }

    /// Returns a walk over records of which each begins at one of the two offsets of a pair.
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

    /// Returns the next record; `None` at the end.
    pub(crate) fn next<M: Medium>(
        &mut self,
        segments: &Segments<M>,
    ) -> Option<(Off, RecordHeader)> {
        loop {
            if let Some(span) = self.members.last_mut() {
                match span.next(segments) {
                    Some(member) => return Some(member),
                    None => self.members.pop(),
                };
                continue;
            }
            if let Some(group) = self.group.take() {
                return Some(group);
            }
            let (at, header) = self.next_own(segments)?;
            if header.what != RecordType::Group {
                return Some((at, header));
            }
            let table = segments.table_of(at, &header);
            // An entry of a damaged table may name any segment.
            let alive =
                ValueExtent::decode_all(&table).filter(|extent| segments.has_generation(extent));
            let mut members: Vec<RecordSpan> = alive
                .map(|extent| {
                    let used = segments.info(extent.segment).used.load(Relaxed);
                    RecordSpan::new(segments, extent.segment, used as usize)
                })
                .collect();
            members.reverse();
            (self.members, self.group) = (members, Some((at, header)));
        }
    }

    fn next_own<M: Medium>(&mut self, segments: &Segments<M>) -> Option<(Off, RecordHeader)> {
        match &mut self.own {
            WalkScope::Span(span) => span.next(segments),
            WalkScope::Places {
                places,
                next,
                whole,
            } => {
                while let Some(place) = places.get(*next) {
                    if let Some([ahead, _]) = places.get(*next + PLACES_AHEAD) {
                        segments.medium().prefetch(*ahead, FETCHED_VALUE);
                    }
                    *next += 1;
                    let mut begins = place.iter().map(|at| (*at, segments.header(*at)));
                    match begins.find_map(|(at, header)| Some((at, header?))) {
                        Some(found) => return Some(found),
                        None => *whole = false,
                    }
                }
                None
            }
        }
    }

    /// Whether all of the segment's own bytes so far belonged to records, or each pair of offsets had a record.
    pub(crate) fn is_whole(&self) -> bool {
        match &self.own {
            WalkScope::Span(span) => span.whole,
            WalkScope::Places { whole, .. } => *whole,
        }
    }
}

impl<M: Medium> Segments<M> {
    /// Calls `each` for every record in a segment's first `end` bytes, and for the members of its groups. The record of
    /// a large group comes after its members. Returns whether all of the segment's own bytes belonged to records.
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

    /// Calls `each` for every record that lies in a segment's first `end` bytes. Members of small groups and the
    /// records of large groups are included; members of large groups lie in other segments and are not.
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
