//! The deliberate differences from Ethereum, and their reasons. A name covers every case that begins with it, all of
//! which differ.

const SELFDESTRUCT: &str =
    "before Cancun a destroyed contract loses slots that the batch has not read, which a delta cannot name";
const STORAGE_COLLISION: &str =
    "EIP-7610: no genesis here has an account with nothing but storage, and nothing else makes one";
const HEADER: &str = "a rule about the header of a block with blobs, which no batch here has";
const CONSTANTINOPLE: &str = "Constantinople before it was mended (EIP-1283), which is no chain's fork";

pub(super) const DIFFERENCES: [(&str, &str); 11] = [
    (
        "src/GeneralStateTestsFiller/Pyspecs/constantinople/create2/test_recreate.py::test_recreate[fork_Constantinople-",
        SELFDESTRUCT,
    ),
    (
        "src/GeneralStateTestsFiller/Pyspecs/constantinople/create2/test_recreate.py::test_recreate[fork_ConstantinopleFix",
        SELFDESTRUCT,
    ),
    (
        "src/GeneralStateTestsFiller/Pyspecs/constantinople/create2/test_recreate.py::test_recreate[fork_Istanbul",
        SELFDESTRUCT,
    ),
    (
        "src/GeneralStateTestsFiller/Pyspecs/constantinople/create2/test_recreate.py::test_recreate[fork_Berlin",
        SELFDESTRUCT,
    ),
    (
        "src/GeneralStateTestsFiller/Pyspecs/constantinople/create2/test_recreate.py::test_recreate[fork_London",
        SELFDESTRUCT,
    ),
    (
        "src/GeneralStateTestsFiller/Pyspecs/constantinople/create2/test_recreate.py::test_recreate[fork_Paris",
        SELFDESTRUCT,
    ),
    (
        "src/GeneralStateTestsFiller/Pyspecs/constantinople/create2/test_recreate.py::test_recreate[fork_Shanghai",
        SELFDESTRUCT,
    ),
    (
        "src/GeneralStateTestsFiller/Pyspecs/paris/security/test_selfdestruct_balance_bug.py::test_tx_selfdestruct_balance_bug[fork_Constantinople-",
        CONSTANTINOPLE,
    ),
    (
        "src/GeneralStateTestsFiller/Pyspecs/cancun/eip4844_blobs/test_excess_blob_gas.py::test_invalid_zero_excess_blob_gas_in_header[",
        HEADER,
    ),
    (
        "src/GeneralStateTestsFiller/Pyspecs/cancun/eip4844_blobs/test_excess_blob_gas_fork_transition.py::test_invalid_pre_fork_block_with_blob_fields[",
        HEADER,
    ),
    ("InitCollisionParis_", STORAGE_COLLISION),
];
