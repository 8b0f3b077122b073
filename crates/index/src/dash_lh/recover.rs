//! After a crash; and the whole table looked through.

use farbank_pm::{Medium, Off, fault};

use super::DashLh;
use super::layout::{ARRAYS, DIRECTORY_BYTES};
use crate::dash::Table;
use crate::ground::{Block, OpenError};

impl<M: Medium> DashLh<M> {
    /// Makes the directory durable as a killed process left it, then frees what no entry and no stash leads to, and what a
    /// split that was cut short has chained. Reads a few words a lane, and the directory.
    pub(super) fn recover(&self) -> Result<(), OpenError> {
        self.check_directory()
            .map_err(|what| OpenError::Damaged { what })?;
        let mut worker = self.ground.worker()?;
        self.ground
            .accept(&mut worker, self.directory, DIRECTORY_BYTES);
        self.ground.recover(|block| self.is_live(block))?;
        let coming = self.state().count();
        if self.has(coming) {
            self.dash().unchain(&mut worker, self.segment(coming))?; // I5
        }
        Ok(())
    }

    /// Whether the array of a segment is there.
    fn has(&self, number: u64) -> bool {
        let array = self.config.spot(number).array;
        array < ARRAYS && !self.array(array).is_null()
    }

    /// Whether the root's words are such as a table writes, and entries name arrays for all segments and perhaps for one
    /// more.
    fn check_directory(&self) -> Result<(), String> {
        let far = self.ground.medium().len();
        let fits = |at: Off, bytes: u64| {
            at.0.is_multiple_of(8) && at.0.checked_add(bytes).is_some_and(|end| end <= far)
        };
        if self.directory.is_null() || !fits(self.directory, DIRECTORY_BYTES) {
            return Err(format!("the root names {:?} as directory", self.directory));
        }
        let state = self.state();
        if !state.is_sound() {
            return Err(format!("the root says {state:?}"));
        }
        let last = self.config.spot(state.count() - 1).array;
        let coming = self.config.spot(state.count()).array;
        for array in 0..ARRAYS {
            let at = self.array(array);
            let sound = match at.is_null() {
                true => array > last,
                false => array <= coming && fits(at, self.config.array_bytes(array)),
            };
            if !sound {
                return Err(format!("entry {array} of the directory names {at:?}"));
            }
        }
        Ok(())
    }

    fn is_live(&self, block: Block) -> bool {
        if block.class.is_none() {
            let mut named = block.at == self.directory || fault!("dash-lh.array_leaks");
            self.each_array(|_, at| named |= at == block.at);
            return named;
        }
        let owner = self.dash().owner(block.at);
        let known = owner <= self.state().count() && self.has(owner);
        known
            && self
                .dash()
                .chained(self.segment(owner))
                .any(|at| at == block.at)
    }

    pub(super) fn check_segments(&self) -> Result<(), String> {
        self.check_directory()?;
        let (dash, medium) = (self.dash(), self.ground.medium());
        let mut reached = vec![self.directory];
        self.each_array(|_, at| reached.push(at));
        for number in 0..self.state().count() {
            let segment = self.segment(number);
            let says = medium.load(segment);
            if says != number {
                return Err(format!("segment {number} at {segment:?} says {says:#x}"));
            }
            self.check_segment(segment)?;
            reached.extend(dash.chained(segment));
        }
        self.ground
            .check(|reach| reached.into_iter().for_each(reach))
    }
}
