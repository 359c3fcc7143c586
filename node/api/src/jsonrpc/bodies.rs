//! [`Bodies`]: how many bodies are processed at once, and how long each may take, depending on its requests.

use parking_lot::Mutex;
use slipstream_fair::{Permit, Permits, Probation};
use slipstream_rpc::{Caller, Lane, Table};

use super::{RequestBody, SENDING_SYNC, envelope::Request};
use crate::listener::{NoPlace, Weight};

/// Maximum number of cheap bodies that are processed at once, each with its answers so far. Further bodies wait. The
/// waiting bodies of one address do not block those of others.
pub(super) const CHEAP_BODIES_MAX: usize = 32;
/// Maximum number of sockets' costly bodies at once, and of those whose only costly calls are searches. Only as many
/// run as there are threads; a few more keep the threads busy. The rest wait here, instead of ahead of HTTP calls in
/// the threads' queue. Bodies over HTTP have no such bound. Each has a place of the listener, and under a bound,
/// endless bodies would make short ones wait here.
const SOCKET_COSTLY_BODIES_MAX: usize = 8;
const SOCKET_SEARCH_BODIES_MAX: usize = 8;
/// Maximum number of bodies that wait for receipts. They need no thread, but wait so long that others would queue
/// behind them.
const WAITING_BODIES_MAX: usize = 64;
/// Maximum number of requests in an array that still counts as cheap: many cheap calls take as long as a costly one.
pub(super) const CHEAP_REQUESTS_MAX: usize = 32;

/// The places of bodies, by the kind of their requests.
pub(super) struct Bodies {
    /// `None` if the number is unlimited.
    pub(super) costly: Option<Permits>,
    searching: Option<Permits>,
    pub(super) cheap: Permits,
    waiting: Permits,
}

impl Bodies {
    /// The places of HTTP bodies.
    pub(super) fn over_http() -> Bodies {
        Bodies::new(None, None)
    }

    /// The places of sockets' messages.
    pub(super) fn over_sockets() -> Bodies {
        Bodies::new(Some(SOCKET_COSTLY_BODIES_MAX), Some(SOCKET_SEARCH_BODIES_MAX))
    }

    fn new(costly: Option<usize>, searching: Option<usize>) -> Bodies {
        Bodies {
            costly: costly.map(Permits::new),
            searching: searching.map(Permits::new),
            cheap: Permits::new(CHEAP_BODIES_MAX),
            waiting: Permits::new(WAITING_BODIES_MAX),
        }
    }

    /// The places for a body, if bodies of its kind are bounded, and how long it may take.
    pub(super) fn places_for(&self, asked: &RequestBody<'_>, table: &Table) -> (Option<&Permits>, Weight) {
        let lane_of = |request: &Request<'_>| request.lane(table);
        let requests = asked.requests();
        let waits = |request: &Request<'_>| request.call().is_some_and(|call| call.method == SENDING_SYNC);
        if requests.iter().any(waits) {
            (Some(&self.waiting), Weight::Waits)
        } else if requests.iter().any(|request| matches!(lane_of(request), Lane::Calls | Lane::Traces)) {
            (self.costly.as_ref(), Weight::Long)
        } else if requests.iter().any(|request| lane_of(request) == Lane::Searches) {
            (self.searching.as_ref(), Weight::Long)
        } else if requests.len() > CHEAP_REQUESTS_MAX {
            (self.costly.as_ref(), Weight::Long)
        } else {
            (Some(&self.cheap), Weight::Short)
        }
    }
}

/// Asks the listener for the places that a call of this weight needs.
pub(super) type Weigh<'a> = dyn FnMut(Weight) -> Result<Option<Probation>, NoPlace> + Send + 'a;

/// The place of a body that is being processed. A cheap place is released as soon as its body no longer needs it.
pub(super) struct BodyPlace<'a> {
    bodies: &'a Bodies,
    state: Mutex<State<'a>>,
}

struct State<'a> {
    place: Option<Permit>,
    weight: Weight,
    weigh: Box<Weigh<'a>>,
}

impl<'a> BodyPlace<'a> {
    /// Creates the state of a body of this weight, which has no place yet.
    pub(super) fn new(bodies: &'a Bodies, weight: Weight, weigh: Box<Weigh<'a>>) -> BodyPlace<'a> {
        BodyPlace { bodies, state: Mutex::new(State { place: None, weight, weigh }) }
    }

    /// Sets the body's place.
    pub(super) fn take(&self, place: Option<Permit>) {
        self.state.lock().place = place;
    }

    /// Releases the place.
    pub(super) fn leave(&self) {
        let place = self.state.lock().place.take();
        drop(place);
    }

    /// Turns a short body into a long one, because it reads a large batch or has a long answer. It releases its place
    /// among the short ones and waits for one among the long ones.
    ///
    /// # Errors
    /// If the caller has no place for long calls.
    pub(super) async fn lengthen(&self, caller: &Caller) -> Result<(), NoPlace> {
        {
            let mut state = self.state.lock();
            if state.weight != Weight::Short {
                return Ok(());
            }
            state.weight = Weight::Long;
            (state.weigh)(Weight::Long)?;
        }
        self.leave();
        if let Some(listening) = &caller.listening {
            listening.take_turn().await;
        }
        if let Some(costly) = &self.bodies.costly {
            let place = costly.take(caller.origin).await;
            self.take(Some(place));
        }
        Ok(())
    }
}
