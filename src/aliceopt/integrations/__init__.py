"""Alice and the lab inside other frameworks: each module needs the one it is named after."""
