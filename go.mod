module glovebox

go 1.26
