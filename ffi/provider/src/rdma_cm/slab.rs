//! Things by small numbers, the lowest free one first, as the kernel numbers ids.

/// See above.
pub struct Slab<T>(Vec<Option<T>>);

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> Slab<T> {
    /// Adds something and tells its number.
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

    /// The same, to be changed.
    pub fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        self.0.get_mut(number as usize)?.as_mut()
    }

    /// Takes it out; its number is free.
    pub fn remove(&mut self, number: u32) -> Option<T> {
        self.0.get_mut(number as usize)?.take()
    }

    /// All that are there.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.0.iter().enumerate().filter_map(|(number, value)| Some((number as u32, value.as_ref()?)))
    }
}
