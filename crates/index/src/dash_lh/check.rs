//! The consistency check of the whole table.

use farbank_pm::Medium;

use super::DashLh;
use super::layout::CHAINED;
use crate::dash::DashTable;
use crate::error::IndexError;

impl<M: Medium> DashLh<M> {
    pub(super) fn check_segments(&self) -> Result<(), IndexError> {
        self.check_directory()?;
        let mut reached = vec![self.directory];
        self.each_array(|_, at| reached.push(at));
        self.each_segment(&mut |segment, number| {
            self.check_segment(segment, number)?;
            reached.extend(self.dash().chained(segment));
            Ok(())
        })?;
        let coming = self.state().count();
        if self.has(coming) {
            let chained = (self.dash()).chain_of(self.segment(coming), CHAINED, coming)?;
            reached.extend(chained.iter().map(|block| block.at));
        }
        self.table_pool
            .check(|reach| reached.into_iter().for_each(reach))
    }
}
