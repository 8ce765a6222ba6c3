//! Things by small numbers, which are used again.

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Slots<T> {
    all: Vec<Option<T>>,
    free: Vec<usize>,
}

impl<T> Default for Slots<T> {
    fn default() -> Slots<T> {
        Slots { all: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slots<T> {
    pub(super) fn insert(&mut self, thing: T) -> usize {
        match self.free.pop() {
            Some(slot) => {
                self.all[slot] = Some(thing);
                slot
            }
            None => {
                self.all.push(Some(thing));
                self.all.len() - 1
            }
        }
    }

    /// # Panics
    /// There is none.
    pub(super) fn get(&mut self, slot: usize) -> &mut T {
        self.all[slot].as_mut().expect("it is there as long as somebody has its number")
    }

    /// # Panics
    /// There is none.
    pub(super) fn remove(&mut self, slot: usize) -> T {
        let thing = self.all[slot].take().expect("it is there as long as somebody has its number");
        self.free.push(slot);
        thing
    }

    pub(super) fn drain(&mut self) -> impl Iterator<Item = T> {
        self.free.clear();
        self.all.drain(..).flatten()
    }
}
