//! Time under a script: it passes only when the script says so, and deadlines and timers end in it.

use std::time::Duration;

use slipstream_network::NetworkError;
use tokio::time::Instant;

use super::Rig;
use crate::engine::timers::Timer;

impl Rig {
    /// Lets time pass. Requests whose deadline is reached by then fail.
    pub(in crate::engine) fn wait(&mut self, time: Duration) -> &mut Rig {
        let end = self.now + time;
        self.step();
        while let Some(at) = self.next().filter(|at| *at <= end) {
            self.pass(at);
        }
        self.now = end;
        self
    }

    /// Lets time pass until a timer ends.
    #[track_caller]
    pub(in crate::engine) fn until(&mut self, timer: Timer) -> &mut Rig {
        self.step();
        let at = self.engine.timers.get(timer);
        let at = at.unwrap_or_else(|| panic!("{timer:?} does not run: {:?}", self.engine.timers));
        self.wait(at - self.now)
    }

    /// When the next event happens that no script decides.
    fn next(&self) -> Option<Instant> {
        let ends = self.open.iter().map(|open| open.ends).min();
        [self.engine.poll_timeout(), ends].into_iter().flatten().min()
    }

    fn pass(&mut self, at: Instant) {
        self.now = at;
        for open in self.take(|open| open.ends <= at) {
            let (peer, deadline) = (open.peer, open.deadline);
            self.engine.handle_answer(open.id, Err(NetworkError::Deadline { peer, deadline }), at);
        }
        if self.engine.poll_timeout().is_some_and(|timeout| timeout <= at) {
            self.engine.handle_timeout(at);
        }
        let next = self.engine.poll_timeout();
        assert!(next.is_none_or(|next| next > at), "it spins: {:?}", self.engine.timers.next());
        self.step();
    }
}
