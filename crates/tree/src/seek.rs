//! The way to a node: from the index cache or the root, checked at its end.

use std::rc::Rc;

use farbank_fabric::{Fabric, GAddr, Verb};
use farbank_pm::fault;

use crate::Error;
use crate::client::{Client, Found, ROOT};
use crate::key::Key;
use crate::page::{Entry, Page, State};

/// A node that may be the one that was looked for, and who said so.
pub(crate) struct Way {
    pub(crate) at: GAddr,
    /// The kept node that named it; `None`: it was named by what has just been read.
    hint: Option<(u8, Key)>,
    /// Separators of its parent before the one that named it.
    before: usize,
}

/// What a node turned out to be.
pub(crate) enum Step {
    /// It is the one.
    Here,
    /// Look there instead.
    There(GAddr),
    /// The way was wrong.
    Lost,
}

/// Of an internal node: the child for `key`, `skip` separators to the left of the right one, and how many there are left of it.
fn child_for(page: &Page, key: &Key, skip: usize) -> Option<(GAddr, usize)> {
    let mut below: Vec<Entry> = page
        .each()
        .filter_map(|found| found.ok().map(|(_, entry)| entry))
        .filter(|entry| entry.key <= *key)
        .collect();
    if skip == 0 {
        let nearest = below.iter().max();
        let child = nearest.map_or(page.head().low, |entry| GAddr(entry.value));
        return Some((child, below.len()));
    }
    below.sort_unstable();
    let place = below.len().checked_sub(skip)?;
    let child = match place {
        0 => page.head().low,
        _ => GAddr(below[place - 1].value),
    };
    Some((child, place))
}

impl<F: Fabric> Client<F> {
    /// The way to the node of `level` for `key`, by what is kept if anything is. `None`: the tree is not that high.
    pub(crate) async fn seek(
        &self,
        key: &Key,
        level: u8,
        skip: usize,
    ) -> Result<Option<Way>, Error> {
        let kept = match skip {
            0 => self.home.cache.borrow_mut().lowest(level + 1, key),
            _ => None,
        };
        let mut next = match kept {
            Some((_, page)) => {
                let head = page.head();
                let (at, before) = child_for(&page, key, 0).expect("nothing is skipped");
                if head.level == level + 1 {
                    let hint = Some((head.level, head.lowest));
                    return Ok(Some(Way { at, hint, before }));
                }
                at
            }
            None => self.root().await?,
        };
        loop {
            let found = self.read(next).await?;
            let head = found.page.head();
            if head.level == level {
                return Ok(Some(Way {
                    at: next,
                    hint: None,
                    before: 0,
                }));
            }
            if head.level < level {
                return Ok(None);
            }
            match judge(&found.page, key, head.level) {
                Step::Here => {}
                Step::There(at) => {
                    next = at;
                    continue;
                }
                Step::Lost => {
                    // Only a kept node names a wrong one.
                    self.forget_above(level, key);
                    next = self.root().await?;
                    continue;
                }
            }
            let page = Rc::new(found.page);
            self.home.cache.borrow_mut().keep(found.at, &page);
            let skip = if head.level == level + 1 { skip } else { 0 };
            let Some((at, before)) = child_for(&page, key, skip) else {
                return Err(Error::Damaged { at: found.at });
            };
            if head.level == level + 1 {
                return Ok(Some(Way {
                    at,
                    hint: None,
                    before,
                }));
            }
            next = at;
        }
    }

    /// Where the root is, as of now.
    pub(crate) async fn root(&self) -> Result<GAddr, Error> {
        let word = self.round_trip(Verb::read(ROOT, 8)).await?.into_bytes();
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&word);
        match GAddr(u64::from_le_bytes(bytes)) {
            GAddr::NULL => Err(Error::NoTree),
            root => Ok(root),
        }
    }

    /// What led to `way` was wrong: forgets it. Answers how many separators to skip next time.
    pub(crate) fn lost(&self, way: &Way, skip: usize) -> usize {
        self.outdated(way);
        match &way.hint {
            Some(_) => 0,
            // What was just read named a leaf that is no more: its entries went to the left of it.
            None => (skip + 1).min(skip + way.before),
        }
    }

    /// The kept node that named `way`, if one did, says no more what is: forgets it.
    pub(crate) fn outdated(&self, way: &Way) {
        if let Some((level, lowest)) = &way.hint {
            self.home.cache.borrow_mut().drop_node(*level, lowest);
        }
    }

    /// Forgets every kept node above `level` on the way to `key`.
    fn forget_above(&self, level: u8, key: &Key) {
        let mut cache = self.home.cache.borrow_mut();
        while let Some((_, page)) = cache.lowest(level + 1, key) {
            let head = page.head();
            cache.drop_node(head.level, &head.lowest);
        }
    }

    /// Whether `way` was named by a kept node.
    pub(crate) fn by_hint(way: &Way) -> bool {
        way.hint.is_some()
    }

    /// The leaf for `key`, read.
    pub(crate) async fn leaf(&self, key: &Key) -> Result<Found, Error> {
        let mut skip = 0;
        loop {
            let way = self.seek(key, 0, skip).await?.ok_or(Error::NoTree)?;
            let mut at = way.at;
            loop {
                let found = self.read(at).await?;
                match judge(&found.page, key, 0) {
                    Step::Here if found.page.head().state == State::Moving => {
                        return self.moved(found, key).await;
                    }
                    Step::Here => {
                        let hit = Self::by_hint(&way) && at == way.at;
                        self.note(|op| op.cache_hit = hit);
                        return Ok(found);
                    }
                    Step::There(next) => {
                        self.outdated(&way);
                        at = next;
                    }
                    Step::Lost => break,
                }
            }
            skip = self.lost(&way, skip);
        }
    }

    /// A leaf that is moving is read where it moves to, if it has.
    pub(crate) async fn moved(&self, found: Found, key: &Key) -> Result<Found, Error> {
        let target = self.read(found.page.head().low).await?;
        let there = target.page.head();
        match there.level == 0 && there.state == State::Live && there.covers(key) {
            true => Ok(target),
            false => Ok(found),
        }
    }
}

/// Whether a node is the one of `level` for `key`.
pub(crate) fn judge(page: &Page, key: &Key, level: u8) -> Step {
    let head = page.head();
    if fault!("tree.fences_unchecked") && head.level == level {
        return Step::Here;
    }
    if head.level != level || head.state == State::Nothing || *key < head.lowest {
        return Step::Lost;
    }
    match head.state {
        State::Freed => Step::There(head.low),
        _ if head.covers(key) => Step::Here,
        _ if head.sibling.is_null() => Step::Lost,
        _ => Step::There(head.sibling),
    }
}
