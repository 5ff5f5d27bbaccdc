// portable
