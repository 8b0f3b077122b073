//! [`Step`], one access of an operation to one line, and its [`Category`].

use std::cell::Cell;

/// The purpose of an access.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u8)]
pub enum Category {
    /// Allocating and freeing space.
    Allocator,
    /// Moving existing data: growing, splitting, cleaning.
    Resize,
    /// Keys and values.
    KeyValue,
    /// Locks in far memory.
    Lock,
    /// All other accesses.
    #[default]
    Other,
}

impl Category {
    /// All categories.
    pub const ALL: [Category; 5] = [
        Category::Allocator,
        Category::Resize,
        Category::KeyValue,
        Category::Lock,
        Category::Other,
    ];

    /// Returns the name as it is printed.
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

    /// Assigns this thread's accesses to this category until the guard is dropped. The innermost scope counts.
    ///
    /// Costs two stores to a thread-local byte. Only the model reads it.
    #[inline]
    #[must_use]
    pub fn scope(self) -> CategoryScope {
        CategoryScope(CURRENT.replace(self))
    }

    /// Returns the category of this thread's accesses now.
    #[inline]
    #[must_use]
    pub fn current() -> Category {
        CURRENT.get()
    }
}

thread_local! {
    static CURRENT: Cell<Category> = const { Cell::new(Category::Other) };
}

/// The guard of [`Category::scope`]. Its drop restores the previous category.
#[derive(Debug)]
pub struct CategoryScope(Category);

impl Drop for CategoryScope {
    #[inline]
    fn drop(&mut self) {
        CURRENT.set(self.0);
    }
}

/// The kind of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum StepKind {
    /// Loads a line, then waits for all of the worker's loads.
    Load,
    /// Loads a line without waiting.
    Fetch,
    /// Stores to a line in the cache.
    Store,
    /// Writes a line back.
    Flush,
    /// Stores a whole line around the cache.
    Around,
    /// Waits for all flushed lines and those stored around the cache.
    Fence,
    /// Computes; the argument is the time in nanoseconds.
    Compute,
    /// Takes a lock; the argument is its number.
    Lock,
    /// Releases a lock; the argument is its number.
    Unlock,
    /// Waits until every worker that still has operations is at a barrier, as a stop-the-world phase does.
    Barrier,
}

/// One step of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    /// Kind.
    pub act: StepKind,
    /// Category.
    pub category: Category,
    /// Number of the source line that does it, in [`Trace`](super::Trace)'s table; 0 if unknown.
    pub place: u16,
    /// The line (offset / 64), nanoseconds, or a lock's number.
    pub argument: u32,
}

impl Step {
    /// Creates a step without a source line, in [`Category::Other`].
    #[must_use]
    pub const fn new(act: StepKind, what: u32) -> Step {
        Step {
            act,
            category: Category::Other,
            place: 0,
            argument: what,
        }
    }

    /// Returns the owner of a write: its source line and category in one word.
    pub(super) fn owner(self) -> u32 {
        u32::from(self.place) << 8 | self.category as u32
    }
}
