# The only place commands are defined. `make help` lists them.
