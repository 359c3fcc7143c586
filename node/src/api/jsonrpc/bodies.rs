//! [`Bodies`]: the places of bodies that are worked on, and how long a body may take, by what it asks for.

use parking_lot::Mutex;

use super::{Asked, SENDING_SYNC, envelope::Request};
use crate::{
    api::listener::{NoPlace, Weight},
    fair::{Place, Places},
    probation::Probation,
    rpc::{Caller, Lane, Table},
};

/// Bodies worked on at a time, each with its answers so far, that ask for little. More wait. The bodies of one address let those of
/// others through.
pub(super) const CHEAP_BODIES_MAX: usize = 32;
/// The same of bodies with costly calls, and of those whose only costly calls are searches: of sockets. As many run as there are
/// threads; a few more keep these busy. The rest waits here, and not before the calls over HTTP in the queue of the threads. Those
/// over HTTP have no such bound. Each has a place of the listener, and an endless one would make short ones wait here.
const SOCKET_COSTLY_BODIES_MAX: usize = 8;
const SOCKET_SEARCH_BODIES_MAX: usize = 8;
/// The same of bodies that wait for receipts: without a thread, and for so long that others would wait for them.
const WAITING_BODIES_MAX: usize = 64;
/// Requests in an array that still counts as cheap: many cheap calls take as long as a costly one.
pub(super) const CHEAP_REQUESTS_MAX: usize = 32;

/// The places of bodies, by what they ask for.
pub(super) struct Bodies {
    /// `None` if there are as many as come.
    pub(super) costly: Option<Places>,
    searching: Option<Places>,
    pub(super) cheap: Places,
    waiting: Places,
}

impl Bodies {
    /// Of HTTP.
    pub(super) fn over_http() -> Bodies {
        Bodies::new(None, None)
    }

    /// Of sockets.
    pub(super) fn over_sockets() -> Bodies {
        Bodies::new(Some(SOCKET_COSTLY_BODIES_MAX), Some(SOCKET_SEARCH_BODIES_MAX))
    }

    fn new(costly: Option<usize>, searching: Option<usize>) -> Bodies {
        Bodies {
            costly: costly.map(Places::new),
            searching: searching.map(Places::new),
            cheap: Places::new(CHEAP_BODIES_MAX),
            waiting: Places::new(WAITING_BODIES_MAX),
        }
    }

    /// The places for a body, if such bodies have a bound, and how long they may take.
    pub(super) fn places_for(&self, asked: &Asked<'_>, table: &Table) -> (Option<&Places>, Weight) {
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

/// Asks the listener for the places that a call of a weight needs there.
pub(super) type Weigh<'a> = dyn FnMut(Weight) -> Result<Option<Probation>, NoPlace> + Send + 'a;

/// The place of a body that is worked on. A cheap one is given back as soon as its body does not need it any more.
pub(super) struct Standing<'a> {
    bodies: &'a Bodies,
    state: Mutex<State<'a>>,
}

struct State<'a> {
    place: Option<Place>,
    weight: Weight,
    weigh: Box<Weigh<'a>>,
}

impl<'a> Standing<'a> {
    /// Of a body of some weight, without a place yet.
    pub(super) fn new(bodies: &'a Bodies, weight: Weight, weigh: Box<Weigh<'a>>) -> Standing<'a> {
        Standing { bodies, state: Mutex::new(State { place: None, weight, weigh }) }
    }

    /// It has a place.
    pub(super) fn take(&self, place: Option<Place>) {
        self.state.lock().place = place;
    }

    /// Gives the place back.
    pub(super) fn leave(&self) {
        let place = self.state.lock().place.take();
        drop(place);
    }

    /// The body was to be short, and reads a large batch, or has a long answer: it leaves its place to short ones, and waits for one among
    /// long ones.
    ///
    /// # Errors
    /// If the caller has no place for that.
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
