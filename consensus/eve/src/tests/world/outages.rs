//! When a validator goes down, and what it loses.

use rand::Rng;

use super::{Disk, Event, World};

impl World {
    pub(super) fn crash(&mut self, seat: u16) {
        let may_wipe = !self.oracle.wiped && !self.is_traitor(seat) && !self.climate.blackouts;
        let wiped = may_wipe && self.random.random_bool(self.climate.wipe);
        self.crashes += 1;
        let node = &mut self.nodes[usize::from(seat)];
        node.core = None;
        node.incarnation += 1;
        node.flushing = false;
        node.committed_us = 0;
        node.timers.clear();
        if wiped {
            self.oracle.wiped = true;
            node.disk = Disk::default();
        }
        let down_us = self.random.random_range(10_000..3_000_000);
        self.post(seat, down_us, Event::Restart { wiped });
    }

    /// Whether a validator may go down: no more than `u` may be down, lie or be wiped at a time.
    fn may_crash(&self, seat: u16) -> bool {
        let down = (0..self.nodes.len() as u16)
            .filter(|it| self.nodes[usize::from(*it)].core.is_none() || self.is_traitor(*it))
            .count();
        let wiped = usize::from(self.oracle.wiped);
        !self.is_calm() && !self.is_traitor(seat) && down + wiped < usize::from(self.set.failures.any)
    }

    /// A point at which a validator may go down. Returns whether it did.
    pub(super) fn stumble(&mut self, seat: u16) -> bool {
        let share = self.climate.crash;
        let falls = share > 0.0 && self.may_crash(seat) && self.random.random_bool(share);
        if falls {
            self.crash(seat);
        }
        falls
    }
}
