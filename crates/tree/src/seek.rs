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
    /// The least key for which it was named.
    least: Key,
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

/// Of an internal node: the child for `key`, and the least key for which it is named.
pub(crate) fn child_for(page: &Page, key: &Key) -> (GAddr, Key) {
    let entries = page
        .each()
        .filter_map(|found| found.ok().map(|(_, entry)| entry));
    match entries.filter(|entry| entry.key <= *key).max() {
        Some(Entry { key, value }) => (GAddr(value), key),
        None => {
            let head = page.head();
            (head.low, head.lowest)
        }
    }
}

impl<F: Fabric> Client<F> {
    /// The way to the node of `level` for `key`, by what is kept if anything is. `None`: the tree is not that high.
    pub(crate) async fn seek(&self, key: &Key, level: u8) -> Result<Option<Way>, Error> {
        let kept = self.home.cache.borrow_mut().lowest(level + 1, key);
        let mut next = match kept {
            Some((_, page)) => {
                let head = page.head();
                let (at, least) = child_for(&page, key);
                if head.level == level + 1 {
                    let hint = Some((head.level, head.lowest));
                    return Ok(Some(Way { at, hint, least }));
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
                    least: Key::LEAST,
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
            let (at, least) = child_for(&page, key);
            if head.level == level + 1 {
                return Ok(Some(Way {
                    at,
                    hint: None,
                    least,
                }));
            }
            next = at;
        }
    }

    /// Where the root is, as of now.
    pub(crate) async fn root(&self) -> Result<GAddr, Error> {
        self.admit(ROOT.server()).await?;
        let word = self.round_trip(Verb::read(ROOT, 8)).await?.into_bytes();
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&word);
        match GAddr(u64::from_le_bytes(bytes)) {
            GAddr::NULL => Err(Error::NoTree),
            root => Ok(root),
        }
    }

    /// `way`, taken for `aim`, has led astray: for which key the next one is to be taken. What was just read may name a
    /// leaf that is no more, whose entries went to the left of it, and if the one who moved them died, it will
    /// name it for ever: whoever comes from the left finds them.
    pub(crate) fn lost(&self, way: &Way, aim: Key) -> Key {
        self.outdated(way);
        match way.hint {
            Some(_) => aim,
            None => way.least.previous(self.home.config.layout.key_bytes),
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
        let mut aim = key.clone();
        loop {
            let way = self.seek(&aim, 0).await?.ok_or(Error::NoTree)?;
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
            aim = self.lost(&way, aim);
        }
    }

    /// A leaf that is moving is read where it has moved to, if it has.
    pub(crate) async fn moved(&self, mut found: Found, key: &Key) -> Result<Found, Error> {
        loop {
            let (to, from) = (found.page.head().low, found.at);
            match self.chained(key, to, from).await? {
                None => return Ok(found),
                Some(next) if next.page.head().state == State::Moving => found = next,
                Some(next) => return Ok(next),
            }
        }
    }

    /// The leaf that the chain of siblings has for `key`; `None`: it is `moving`. That is how one tells whether a leaf
    /// that is moving to the node at `to` has moved, whatever has become of that node: it may have been split, or merged
    /// away, since the mover died.
    pub(crate) async fn chained(
        &self,
        key: &Key,
        to: GAddr,
        moving: GAddr,
    ) -> Result<Option<Found>, Error> {
        let (mut at, mut aim) = (to, key.clone());
        loop {
            let found = self.read(at).await?;
            at = match judge(&found.page, key, 0) {
                Step::Here => return Ok(Some(found)),
                Step::There(next) if next == moving => return Ok(None),
                Step::There(next) => next,
                Step::Lost => loop {
                    let way = self.seek(&aim, 0).await?.ok_or(Error::NoTree)?;
                    aim = self.lost(&way, aim);
                    if way.at != moving {
                        break way.at;
                    }
                },
            };
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
