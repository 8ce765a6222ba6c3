//! Things by small numbers, which are used again: who is busy allocates nothing.

/// See the module's documentation.
#[derive(Debug)]
pub struct Slots<T> {
    all: Vec<Option<T>>,
    free: Vec<usize>,
}

impl<T> Default for Slots<T> {
    fn default() -> Slots<T> {
        Slots { all: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slots<T> {
    /// Takes something in; the answer names it.
    pub fn insert(&mut self, thing: T) -> usize {
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

    /// What has that number.
    ///
    /// # Panics
    /// Nothing has it.
    pub fn get(&mut self, slot: usize) -> &mut T {
        self.all[slot].as_mut().expect("it is there as long as somebody has its number")
    }

    /// What has that number, if something does.
    #[must_use]
    pub fn find(&self, slot: usize) -> Option<&T> {
        self.all.get(slot)?.as_ref()
    }

    /// Takes something out.
    ///
    /// # Panics
    /// Nothing has that number.
    pub fn remove(&mut self, slot: usize) -> T {
        let thing = self.all[slot].take().expect("it is there as long as somebody has its number");
        self.free.push(slot);
        thing
    }

    /// All that is there.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.all.iter_mut().flatten()
    }

    /// How much is there.
    #[must_use]
    pub fn count(&self) -> usize {
        self.all.len() - self.free.len()
    }

    /// Takes all out.
    pub fn drain(&mut self) -> impl Iterator<Item = T> {
        self.free.clear();
        self.all.drain(..).flatten()
    }
}
