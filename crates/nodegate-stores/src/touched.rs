//! Tells followers about which nodes something has changed.

use std::collections::HashSet;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::Notify;

/// The names of nodes about which something changes. Without a follower, nothing is kept.
#[derive(Debug, Default)]
pub struct Touched(Mutex<Vec<Weak<Waiting>>>);

#[derive(Debug, Default)]
struct Waiting {
    names: Mutex<HashSet<Arc<str>>>,
    more: Notify,
}

impl Touched {
    /// Follows what changes from now on.
    pub fn follow(&self) -> Following {
        let waiting = Arc::default();
        self.0.lock().push(Arc::downgrade(&waiting));
        Following(waiting)
    }

    pub(crate) fn tell(&self, names: impl IntoIterator<Item = Arc<str>>) {
        let mut followers = self.0.lock();
        followers.retain(|follower| follower.strong_count() > 0);
        if followers.is_empty() {
            return;
        }
        let names: Vec<Arc<str>> = names.into_iter().collect();
        for follower in followers.iter().filter_map(Weak::upgrade) {
            follower.names.lock().extend(names.iter().cloned());
            follower.more.notify_one();
        }
    }
}

/// A follower. A name that changes again before it is taken is there once, so a slow follower loses nothing.
#[derive(Debug)]
pub struct Following(Arc<Waiting>);

impl Following {
    /// Waits until there are names, and takes them all.
    pub async fn next(&mut self) -> HashSet<Arc<str>> {
        loop {
            let names = self.take();
            if !names.is_empty() {
                return names;
            }
            self.0.more.notified().await;
        }
    }

    /// Takes the names that there are.
    pub fn take(&mut self) -> HashSet<Arc<str>> {
        std::mem::take(&mut *self.0.names.lock())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn each_follower_gets_each_name_once_until_it_takes_it() {
        let touched = Touched::default();
        touched.tell(["before".into()]);
        let (mut one, mut other) = (touched.follow(), touched.follow());
        touched.tell(["a".into(), "b".into()]);
        touched.tell(["a".into()]);
        assert_eq!(one.next().await, HashSet::from(["a".into(), "b".into()]));
        touched.tell(["a".into()]);
        assert_eq!(one.next().await, HashSet::from(["a".into()]));
        assert_eq!(other.next().await, HashSet::from(["a".into(), "b".into()]));
        assert_eq!(other.take(), HashSet::new());
        drop((one, other));
        touched.tell(["a".into()]);
        assert!(touched.0.lock().is_empty(), "nobody is told who has gone");
    }
}
