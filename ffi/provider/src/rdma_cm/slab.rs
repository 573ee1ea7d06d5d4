//! Values with small numbers. New ones get the lowest free number, like IDs in the kernel.

/// A table of values by number.
pub struct Slab<T>(Vec<Option<T>>);

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> Slab<T> {
    /// Adds a value and returns its number.
    pub fn insert(&mut self, value: T) -> u32 {
        let free = self.0.iter().position(Option::is_none).unwrap_or(self.0.len());
        if free == self.0.len() {
            self.0.push(None);
        }
        self.0[free] = Some(value);
        free as u32
    }

    /// The value with that number.
    pub fn get(&self, number: u32) -> Option<&T> {
        self.0.get(number as usize)?.as_ref()
    }

    /// Mutable access to the value with that number.
    pub fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        self.0.get_mut(number as usize)?.as_mut()
    }

    /// Removes a value; its number becomes free.
    pub fn remove(&mut self, number: u32) -> Option<T> {
        self.0.get_mut(number as usize)?.take()
    }

    /// All values with their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.0.iter().enumerate().filter_map(|(number, value)| Some((number as u32, value.as_ref()?)))
    }
}
