//! A table of items by number.

/// Items by number. The numbers of removed items are reused.
pub(super) struct Slab<T> {
    items: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Slab<T> {
    pub(super) fn new() -> Slab<T> {
        Slab {
            items: Vec::new(),
            free: Vec::new(),
        }
    }

    pub(super) fn add(&mut self, item: T) -> u32 {
        match self.free.pop() {
            Some(number) => {
                self.items[number as usize] = Some(item);
                number
            }
            None => {
                self.items.push(Some(item));
                self.items.len() as u32 - 1
            }
        }
    }

    pub(super) fn get(&mut self, number: u32) -> &mut T {
        self.items[number as usize]
            .as_mut()
            .expect("no item has this number")
    }

    pub(super) fn remove(&mut self, number: u32) -> T {
        self.free.push(number);
        self.items[number as usize]
            .take()
            .expect("no item has this number")
    }
}
