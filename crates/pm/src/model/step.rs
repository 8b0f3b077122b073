//! Steps: what an operation does to memory, one line at a time, and for whom.

use std::cell::Cell;

/// What a write or a read is for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u8)]
pub enum Category {
    /// Finding and freeing space.
    Allocator,
    /// Moving what is there: growing, splitting, cleaning.
    Resize,
    /// Keys and values themselves.
    KeyValue,
    /// Locks that lie in far memory.
    Lock,
    /// Everything else.
    #[default]
    Other,
}

impl Category {
    /// All of them.
    pub const ALL: [Category; 5] = [
        Category::Allocator,
        Category::Resize,
        Category::KeyValue,
        Category::Lock,
        Category::Other,
    ];

    /// As it is printed.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Category::Allocator => "allocator",
            Category::Resize => "resize",
            Category::KeyValue => "key-value",
            Category::Lock => "lock",
            Category::Other => "other",
        }
    }

    /// What this thread does is for this, until the guard goes. The innermost scope counts.
    ///
    /// Costs two stores to a thread's own byte; media that do not ask never look at it.
    #[inline]
    #[must_use]
    pub fn spend(self) -> CategoryScope {
        CategoryScope(CURRENT.replace(self))
    }

    /// What this thread's accesses are for now.
    #[inline]
    #[must_use]
    pub fn current() -> Category {
        CURRENT.get()
    }
}

thread_local! {
    static CURRENT: Cell<Category> = const { Cell::new(Category::Other) };
}

/// A scope of [`Category::spend`]; what was before is restored at its end.
#[derive(Debug)]
pub struct CategoryScope(Category);

impl Drop for CategoryScope {
    #[inline]
    fn drop(&mut self) {
        CURRENT.set(self.0);
    }
}

/// What is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum StepKind {
    /// A line is loaded, and the worker waits for everything it has asked for.
    Load,
    /// A line is asked for; the worker goes on.
    Fetch,
    /// Some of a line is stored into the cache.
    Store,
    /// A line is written back.
    Flush,
    /// A whole line is stored around the cache.
    Around,
    /// Everything on its way is waited for.
    Fence,
    /// The processor works; the argument is nanoseconds.
    Compute,
    /// A lock is taken; the argument is its number.
    Lock,
    /// It is let go.
    Unlock,
    /// Waits until every worker that still has something to do is at one, as a stop of the world does.
    Barrier,
}

/// One step of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    /// What is done.
    pub act: StepKind,
    /// What it is for.
    pub category: Category,
    /// The line of source that does it, in [`Trace`](super::Trace)'s table; 0 if nobody knows.
    pub place: u16,
    /// The line (offset / 64), nanoseconds, or a lock's number.
    pub what: u32,
}

impl Step {
    /// A step nobody in particular takes.
    #[must_use]
    pub const fn new(act: StepKind, what: u32) -> Step {
        Step {
            act,
            category: Category::Other,
            place: 0,
            what,
        }
    }

    /// Place and category in one word.
    pub(super) fn owner(self) -> u32 {
        u32::from(self.place) << 8 | self.category as u32
    }
}
